"""`make lint`: one thing wrong at a time, each named with its file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from patchset import lint
from patchset.marks import read_tests
from patchset.paths import CORE
from patchset.series import load_series
from support import AGENTS, FIRST, SECOND, Project, edited, plain_git

TEST = "packages/core/tests/core/test_it.py"
TESTS = 'import pytest\n\n\n@pytest.mark.contract("T1")\ndef test_it() -> None:\n    assert True\n'
FIRST_FILE = "patches/1.0/0001-Python-Change-the-fifth-line.patch"
SECOND_FILE = "patches/1.0/0002-Python-Change-the-fortieth-line.patch"


def write_test(project: Project, text: str) -> None:
    path = project.layout.behaviour / TEST
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def promise(project: Project, *lines: str, version: str = "1.0.0") -> None:
    project.layout.behaviour.mkdir(exist_ok=True)
    with (project.layout.behaviour / "contract.toml").open("a") as opened:
        opened.write(f'[base."{version}"]\nlines = {list(lines)}\n')


def minimum(project: Project, *versions: str) -> None:
    lines = "".join(f'"{version}" = 1\n' for version in versions)
    (project.layout.series("1.0") / "expected-changes.toml").write_text(f"[minimum]\n{lines}")


@pytest.fixture
def kept(project: Project) -> Project:
    """A project in which nothing is wrong."""
    promise(project, "T1")
    write_test(project, TESTS)
    project.series(FIRST, SECOND)
    minimum(project, "1.0.0")
    project.good("apply")
    project.good("export")
    return project


def complaints(project: Project) -> list[str]:
    """Return the problems that lint lists."""
    message = project.bad(1, "lint")
    return [line.removeprefix("  | ") for line in message.splitlines() if line.startswith("  | ")]


def edit(project: Project, old: str, new: str, *, number: int = 0) -> None:
    """Change the message of a patch."""
    path = sorted(project.layout.series("1.0").glob("*.patch"))[number]
    text, changes = re.subn(old, new, path.read_text(), count=1, flags=re.DOTALL)
    assert changes == 1
    path.write_text(text)


def header(project: Project, old: str, new: str, *, number: int = 0) -> None:
    """Change the message of a patch and nothing else, in the form that export writes."""
    edit(project, old, new, number=number)
    project.good("apply")
    project.good("export")


def test_nothing_is_wrong(kept: Project) -> None:
    assert kept.good("lint").out == "lint: 2 patches of 1.0 and the promises of 1 release are in order\n"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("Python: Change the fifth line", "Python: change it", "the subject is not `Python: ` and a sentence"),
        ("Python: Change the fifth line", "Change it", "the subject is not `Python: ` and a sentence"),
        ("Python: Change the fifth line", "Python: Change it.", "the subject is not `Python: ` and a sentence"),
        ("Python: Change the fifth line", f"Python: {'Long ' * 30}x", "the subject is longer than 100 characters"),
        ("Why: The", "The", "the body begins outside of a section: The fifth line is dull."),
        ("Why a patch: ", "Why not: ", "the sections are Why, How, not Why, Why a patch, How"),
        (r"(Why a patch: .*?)\n\n(How: .*?)\n\n", r"\2\n\n\1\n\n", "the sections are Why, How, Why a patch, not"),
        ("How: .*?\n\n", "How:\n\n", "the section How is empty"),
        ("Resolves: .*?\n", "", "Resolves: is missing"),
        ("Resolves: .*?\n", "Resolves: 7236\n", "Resolves: 7236 is no address and no `none (<why>)`"),
        ("Upstream-Status: Ready", "Upstream-Status: Later", "Upstream-Status: Later is not Ready, Submitted ["),
        ("Upstream-Status: Ready", "Upstream-Status: Merged [x]", "Upstream-Status: Merged [x] is not Ready"),
        (
            "Upstream-Status: Ready",
            "Upstream-Status: Ready\nUpstream-Status: Ready",
            "Upstream-Status: is there 2 times",
        ),
        ("Remove-When: .*?\n", "", "Remove-When: is missing"),
        ("Tests: .*?\n", "", "Tests: is missing"),
        (
            "Tests: .*?\n",
            f"Tests: {TEST}::test_gone\n",
            f"Tests: tests/core/test_it.py::test_gone is not in python/{TEST}",
        ),
        ("Tests: .*?\n", "Tests: all\n", "all is not the id of a test"),
        ("Tests: .*?\n", "Tests: none (needed by Python: Gone)\n", "no later patch has the subject that needs it"),
        ("Tests: (.*?)\n", r"Tests: \1\nSigned-off-by: Me <me@example.invalid>\n", "Signed-off-by: is no trailer"),
    ],
)
def test_the_grammar_of_a_header(kept: Project, old: str, new: str, complaint: str) -> None:
    edit(kept, old, new)
    (said,) = lint.series_problems(kept.layout, "1.0", load_series(kept.layout, "1.0"))
    path, _, what = said.partition(": ")
    assert path.startswith("patches/1.0/0001-")
    assert what.startswith(complaint)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Upstream-Status: Ready", "Upstream-Status: Submitted [https://example.invalid/pull/1]"),
        ("Upstream-Status: Ready", "Upstream-Status: Merged [https://example.invalid/pull/1, 1.24.0]"),
        ("Upstream-Status: Ready", "Upstream-Status: Inappropriate [a matter of\n taste]"),
        ("Resolves: .*?\n", "Resolves: none (ground for the next)\n"),
        ("Tests: .*?\n", "Tests: none (needed by Python: Change the\n fortieth line)\n"),
        ("Python: Change the fifth line", "Python: [BREAKING] Change the fifth line"),
        ("Python: Change the fifth line", "Python: `five` is the fifth"),
    ],
)
def test_what_the_grammar_allows(kept: Project, old: str, new: str) -> None:
    edit(kept, old, new)
    assert lint.series_problems(kept.layout, "1.0", load_series(kept.layout, "1.0")) == []


def test_the_last_patch_prepares_for_nothing(kept: Project) -> None:
    header(kept, "Tests: .*?\n", "Tests: none (needed by Python: Change the fifth line)\n", number=1)
    assert complaints(kept) == [f"{SECOND_FILE}: it prepares for a later patch and is the last one"]


def test_the_author_is_the_project(kept: Project) -> None:
    path = kept.layout.root / FIRST_FILE
    path.write_text(path.read_text().replace("From: agent-framework turnscope", "From: Somebody"))
    assert f"{FIRST_FILE}: the author is Somebody <turnscope@localhost>, not the project" in complaints(kept)


@pytest.mark.parametrize("harm", ["signature", "commit id", "short index", "sign", "name", "context"])
def test_drift_between_a_series_and_its_export(kept: Project, harm: str) -> None:
    path = kept.layout.root / FIRST_FILE
    text = path.read_text()
    if harm == "signature":
        path.write_text(f"{text}-- \n2.39.5\n\n")
    elif harm == "commit id":
        path.write_text(text.replace("From 0000", "From 1234", 1))
    elif harm == "short index":
        path.write_text(re.sub(r"index (\w{7})\w+\.\.(\w{7})\w+", r"index \1..\2", text))
    elif harm == "sign":
        path.write_text(text.replace("Subject: ", "Subject: [PATCH 1/2] "))
    elif harm == "context":
        head, _, rest = text.partition("@@ -2,7 +2,7 @@")
        path.write_text(f"{head}@@ -3,5 +3,5 @@{rest}".replace(" line_2 = 2\n", "").replace(" line_8 = 8\n", ""))
    else:
        path.rename(path.with_name("0001-first.patch"))
    advice = "(make export BASE=1.0.0)"
    if harm == "name":
        assert f"patches/1.0/0001-first.patch: should be called otherwise {advice}" in complaints(kept)
    elif harm != "sign":
        assert f"{FIRST_FILE}: is not in the form that export writes {advice}" in complaints(kept)
    else:
        assert any("the subject is not" in complaint for complaint in complaints(kept))
    kept.good("export")
    if harm != "sign":
        kept.good("lint")


def test_a_file_that_is_no_part_of_a_series(kept: Project) -> None:
    (kept.layout.series("1.0") / "0003-more.patch.orig").write_text("x")
    assert complaints(kept) == ["patches/1.0/0003-more.patch.orig: is no part of a series"]


def test_a_line_without_patches_and_patches_without_a_line(kept: Project) -> None:
    kept.layout.series("1.0").rename(kept.layout.series("2.0"))
    kept.layout.series("1.0").mkdir()
    minimum(kept, "1.0.0")
    assert complaints(kept) == [
        "patches/1.0: the line is served and has no patch",
        "patches/2.0: no release is served by it",
    ]


def test_a_series_has_to_apply_to_every_release_that_its_line_serves(kept: Project) -> None:
    kept.release("0.9.0", line="1.0", core={AGENTS: edited(line_4="0")})
    promise(kept, "T1", version="0.9.0")
    message = kept.bad(1, "lint")
    assert "does not apply to 0.9.0" in message
    assert f"{CORE}/{AGENTS}:2, hunk 1 of 1" in message


def test_hunks_may_move_on_an_older_release_of_the_line(kept: Project) -> None:
    kept.release("0.9.0", line="1.0", core={AGENTS: b"# moved\n" + edited()})
    promise(kept, "T1", version="0.9.0")
    minimum(kept, "0.9.0", "1.0.0")
    kept.good("lint")


def test_a_patch_outside_of_the_package(kept: Project) -> None:
    kept.checkout.joinpath("notes.md").write_text("x\n")
    kept.git("add", "--all")
    kept.git("commit", "--quiet", "--amend", "--no-edit")
    kept.good("export")
    assert complaints(kept) == [f"{SECOND_FILE}: touches notes.md, outside of python/"]


def test_a_served_release_without_a_minimum(kept: Project) -> None:
    kept.release("0.9.0", line="1.0")
    promise(kept, "T1", version="0.9.0")
    complaint = "patches/1.0/expected-changes.toml: no minimum for 0.9.0: say how many of upstream's tests pass on it"
    assert complaints(kept) == [f"{complaint} unpatched"]


@pytest.mark.parametrize(
    ("replaced_by", "is_there"),
    [
        ("tests/core/test_it.py::test_it", True),
        ("tests/core/test_it.py::test_it[1]", True),
        ("tests/core/test_it.py::test_other", False),
        ("tests/core/test_other.py::test_it", False),
        ("packages/core/tests/core/test_it.py::test_it", False),
    ],
)
def test_an_overruled_test_has_a_behaviour_test_in_its_place(kept: Project, replaced_by: str, is_there: bool) -> None:
    rows = '[[change]]\ntest = "tests/core/test_x.py::test_y"\ncontract = "T1"\nwhy = "so"\n'
    with (kept.layout.series("1.0") / "expected-changes.toml").open("a") as opened:
        opened.write(f'{rows}replaced_by = "{replaced_by}"\n')

    if is_there:
        kept.good("lint")
    else:
        complaint = f"patches/1.0/expected-changes.toml: {replaced_by} is no behaviour test about T1"
        assert complaints(kept) == [complaint]


def test_an_overruled_test_is_replaced_by_one_about_the_line_that_overrules_it(kept: Project) -> None:
    promise_more = kept.layout.behaviour / "contract.toml"
    promise_more.write_text(promise_more.read_text().replace("['T1']", "['T1', 'T2']"))
    write_test(kept, TESTS + TESTS.partition("\n\n\n")[2].replace("T1", "T2").replace("test_it", "test_that"))
    rows = '[[change]]\ntest = "tests/core/test_x.py::test_y"\ncontract = "T2"\nwhy = "so"\n'
    with (kept.layout.series("1.0") / "expected-changes.toml").open("a") as opened:
        opened.write(f'{rows}replaced_by = "tests/core/test_it.py::test_it"\n')

    complaint = "patches/1.0/expected-changes.toml: tests/core/test_it.py::test_it is no behaviour test about T2"
    assert complaints(kept) == [complaint]


def test_a_served_release_that_the_contract_does_not_speak_of_is_told_once(kept: Project) -> None:
    kept.release("0.9.0", line="1.0")
    minimum(kept, "0.9.0", "1.0.0")
    message = kept.bad(2, "lint")
    assert message.count("contract.toml does not say what 0.9.0 promises") == 1


def test_a_promise_without_a_test(kept: Project) -> None:
    write_test(kept, TESTS.replace("T1", "T2"))
    assert complaints(kept) == ["python/contract.toml: 1.0.0 promises T1, which has no test"]


def test_a_promise_whose_tests_are_about_more_than_is_promised(kept: Project) -> None:
    write_test(kept, TESTS.replace('@pytest.mark.contract("T1")', '@pytest.mark.contract("T1", "T2")'))
    assert complaints(kept) == ["python/contract.toml: 1.0.0 promises T1, which has no test"]


@pytest.mark.parametrize(
    ("text", "skip"),
    [
        (TESTS.replace("def test_it", '@pytest.mark.skip(reason="x")\ndef test_it'), "pytest.mark.skip"),
        (TESTS.replace("def test_it", '@pytest.mark.skipif(True, reason="x")\ndef test_it'), "pytest.mark.skipif"),
        (TESTS.replace("def test_it", "@pytest.mark.xfail\ndef test_it"), "pytest.mark.xfail"),
        (TESTS.replace("assert True", 'pytest.skip("x")'), "pytest.skip"),
        (TESTS.replace("assert True", 'pytest.importorskip("x")'), "pytest.importorskip"),
        (TESTS.replace("\n\n\n", '\n\npytestmark = pytest.mark.skip(reason="x")\n\n\n'), "pytest.mark.skip"),
        (TESTS.replace("\n\n\n", '\n\npytest.skip("x", allow_module_level=True)\n\n\n'), "pytest.skip"),
        (TESTS.replace("\n\n\n", '\n\nmissing = pytest.importorskip("x")\n\n\n'), "pytest.importorskip"),
    ],
)
def test_a_skipped_test_where_its_line_is_promised(kept: Project, text: str, skip: str) -> None:
    write_test(kept, text)
    (complaint,) = complaints(kept)
    assert re.fullmatch(
        rf"python/{re.escape(TEST)}:\d+: test_it may be skipped \({re.escape(skip)}\), and T1 is promised on 1.0.0",
        complaint,
    )


def test_a_skipped_test_where_its_line_is_not_promised(kept: Project) -> None:
    more = '@pytest.mark.contract("T2")\n@pytest.mark.skip(reason="x")\ndef test_other() -> None:\n    pass\n'
    write_test(kept, f"{TESTS}\n\n{more}")
    kept.good("lint")


def test_marks_of_classes_and_modules_count_for_each_test(tmp_path: Path) -> None:
    path = tmp_path / "test_x.py"
    path.write_text(
        'pytestmark = [pytest.mark.contract("T1")]\n\n\n@pytest.mark.contract("T2")\nclass TestIt:\n'
        '    pytestmark = pytest.mark.contract("T3")\n\n'
        '    @pytest.mark.contract("T4")\n    async def test_a(self): ...\n\n'
        "    @pytest.mark.skip\n    def test_b(self): ...\n\n    def helper(self): ...\n\n\ndef test_c(): ...\n"
    )
    assert [(test.name, sorted(test.lines), test.skip) for test in read_tests(path)] == [
        ("TestIt::test_a", ["T1", "T2", "T3", "T4"], None),
        ("TestIt::test_b", ["T1", "T2", "T3"], "pytest.mark.skip"),
        ("test_c", ["T1"], None),
    ]


@pytest.fixture
def tagged(kept: Project) -> Project:
    """The same, released: tagged in the project's own repository."""
    root = kept.layout.root
    (root / ".gitignore").write_text("/build/\n/published/\n")
    plain_git(root, "init", "--quiet")
    commit_all(root)
    plain_git(root, "tag", "v1")
    return kept


def commit_all(root: Path) -> None:
    plain_git(root, "add", "--all")
    identity = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.invalid")
    plain_git(root, *identity, "commit", "--quiet", "--allow-empty", "--message", "x")


def test_a_changed_series_needs_a_new_number(tagged: Project) -> None:
    tagged.good("lint")
    header(tagged, "The fifth line is dull", "The fifth line is very dull")
    complaint = "patches/releases.toml: 1.0.0 has local = 1; its series changed since v1: local = 2"
    assert complaints(tagged) == [complaint]
    commit_all(tagged.layout.root)
    assert complaints(tagged) == [complaint]
    tagged.rows["1.0.0"]["local"] = 2
    tagged.write_table()
    tagged.good("lint")


def test_a_number_does_not_go_back(tagged: Project) -> None:
    tagged.rows["1.0.0"]["local"] = 0
    tagged.write_table()
    assert complaints(tagged) == ["patches/releases.toml: 1.0.0 has local = 0; v1 has a higher one: local = 1"]


def test_a_newly_served_release_begins_where_it_likes(tagged: Project) -> None:
    tagged.release("0.9.0", line="1.0")
    promise(tagged, "T1", version="0.9.0")
    minimum(tagged, "0.9.0", "1.0.0")
    tagged.good("lint")


def test_everything_wrong_is_listed_together(kept: Project) -> None:
    (kept.layout.series("1.0") / "notes.txt").write_text("x")
    write_test(kept, TESTS.replace("T1", "T2"))
    kept.core_file().write_bytes(b"mine\n")
    outcome = kept.run("lint")
    assert outcome.code == 2, "a dirty checkout is the input's fault"
    assert "lint: 2 problems" in outcome.err
    assert "notes.txt: is no part of a series" in outcome.err
    assert "promises T1, which has no test" in outcome.err
    assert "has uncommitted changes; it is left alone" in outcome.err


def test_a_change_of_one_line_goes_through_by_the_commands_alone(kept: Project) -> None:
    """Edit, commit, export, lint: what CONTRIBUTING says, on one line of one patch."""
    kept.core_file().write_bytes(edited(line_5="'five'", line_40="'FORTY'"))
    kept.git("commit", "--quiet", "--all", "--fixup", "HEAD")
    kept.git("rebase", "--quiet", "--interactive", "--autosquash", "refs/patchset/base", GIT_SEQUENCE_EDITOR="true")
    assert "1 changed (0002-" in kept.good("export").out
    kept.good("lint")
    assert "nothing to do, 2 patches" in kept.good("apply").out
    assert SECOND.subject in kept.git("log", "-1", "--format=%s")
