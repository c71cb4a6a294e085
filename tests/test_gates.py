"""`make test` on a small upstream: every gate is run, what fails is listed at the end, and nothing is left behind."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gated import ANSWER, BEHAVIOUR, COPYRIGHT, CORE, FIX, TEST, WORKSPACE, GatedProject, answer
from patchset import envs, gates, net, releases, suites
from patchset.core import core_site, export
from patchset.envs import ensure_env
from patchset.errors import PatchsetError
from patchset.paths import CORE as CORE_PATH
from patchset.prepared import Base, prepare
from patchset.reports import Report
from patchset.summary import Gate, Session
from support import Project, plain_git
from test_lock import index as index  # the fixture

OVERRULED = f"""
minimum = {{ "1.0.0" = 4 }}
[[change]]
test = "tests/core/test_upstream.py::test_divides"
contract = "T1"
why = "42 is the answer and not divisible by 41"
replaced_by = "{TEST}::test_is_the_answer"
"""
LATER_AND_UNMARKED = """

@pytest.mark.skip(reason="later")
@pytest.mark.contract("T3")
def test_later() -> None:
    pass


def test_unmarked() -> None:
    pass
"""


def nothing(*arguments: object) -> None:
    """A gate that has nothing to say."""


@pytest.fixture
def bases_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the gates of the tooling itself, which would run this test again."""
    monkeypatch.setattr(gates, "run_tooling", nothing)


def summary(out: str) -> dict[str, list[str]]:
    """Return result and counts of each gate."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines() if line.startswith("|")]
    return {row[1]: row[2:5] for row in rows if row[0] not in {"base", "---"} and len(row) > 4}


@pytest.mark.usefixtures("bases_only")
def test_every_gate_is_green_on_a_good_series(gated: GatedProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a key that a test must not see")
    gated.patches(FIX)
    gated.expected(OVERRULED)

    outcome = gated.good("test")

    assert summary(outcome.out) == {
        "apply": ["ok", "", ""],
        "ruff check": ["ok", "", ""],
        "ruff format": ["ok", "", ""],
        "pyright": ["ok", "", ""],
        "upstream's suite": ["ok", "4", "0"],
        "behaviour tests": ["ok", "3", "0"],
        "behaviour tests: ruff": ["ok", "", ""],
        "checkout clean": ["ok", "", ""],
    }
    assert "5 pass unpatched; 1 skipped; 1 fail unpatched, too; 1 overruled by the contract" in outcome.out
    assert outcome.out.splitlines()[-1] == "7 passed, 0 failed"
    assert gated.git("status", "--porcelain", "--ignored") == ""
    assert list(gated.layout.work.iterdir()) == []


@pytest.mark.usefixtures("bases_only")
def test_every_failure_is_listed_at_the_end(gated: GatedProject) -> None:
    gated.contract("T1", "T2", "T3", "T4")
    gated.behaviour(
        {
            TEST: BEHAVIOUR.replace("== 42", "== 43").replace("import answer\n", "import answer\nimport os\n")
            + LATER_AND_UNMARKED,
            "tests/core/test_unmarked.py": COPYRIGHT,
        }
    )
    gated.patches(replace(FIX, edits={ANSWER: answer('"42"', "\n\nimport   os\n")}))

    outcome = gated.run("test")

    assert outcome.code == 1
    assert {name: result for name, (result, *_) in summary(outcome.out).items()} == {
        "apply": "ok",
        "ruff check": "FAILED",
        "ruff format": "FAILED",
        "pyright": "FAILED",
        "upstream's suite": "FAILED",
        "behaviour tests": "FAILED",
        "behaviour tests: ruff": "FAILED",
        "checkout clean": "ok",
    }
    listed = outcome.out.partition("+\n1.0.0: ruff check")[2]
    for said in (
        "agent_framework/_answer.py:11:10: unused-import",
        "1.0.0: ruff format: ruff format is not clean",
        "1.0.0: pyright: pyright reports 2 errors",
        "agent_framework/_answer.py:8:12: Type",
        "1.0.0: upstream's suite: 4 of upstream's tests pass unpatched and not patched",
        "tests/core/test_upstream.py::test_is_a_number: failed: AssertionError: assert False",
        "where: build/logs/1.0.0-upstream-s-suite-patched.log",
        "1.0.0: behaviour tests: 1 behaviour tests fail",
        f"{TEST}::test_is_the_answer: AssertionError: assert '42' == 43",
        f"{TEST}::test_unmarked carries no contract line",
        f"{TEST}::test_later is skipped where T3 is promised: Skipped: later",
        "T4 is promised on 1.0.0 and has no test",
        "python/packages/core/tests/core/test_unmarked.py has no test with a contract line",
        f"{TEST}:6:8: unused-import",
        "make test BASE=1.0.0 TESTS=tests/core/test_upstream.py::test_divides\n",
        f"make test BASE=1.0.0 TESTS={TEST}::test_is_the_answer\n",
    ):
        assert said in listed, (said, listed)
    # Of the failures, four are upstream's tests and one is a behaviour test.
    assert outcome.out.splitlines()[-1].endswith(" passed, 5 failed")


def test_a_replacement_that_does_not_pass_is_told(gated: GatedProject) -> None:
    gated.patches(FIX)
    gated.expected(OVERRULED.replace("::test_is_the_answer", "::test_absent"))
    base = prepare(gated.layout, releases.load(gated.layout).default)

    with pytest.raises(PatchsetError) as raised:
        gates.behaviour_tests(base, Gate("1.0.0", "behaviour tests"))

    assert raised.value.what == "the contract is not covered"
    assert raised.value.output == f"{TEST}::test_absent replaces one of upstream's tests and does not pass"


@pytest.mark.usefixtures("bases_only")
def test_a_gate_that_writes_into_the_checkout_is_told(gated: GatedProject, monkeypatch: pytest.MonkeyPatch) -> None:
    def meddle(base: Base, gate: Gate) -> None:
        folder = base.checkout / CORE_PATH / "agent_framework" / "__pycache__"
        folder.mkdir()
        (folder / "x.pyc").write_bytes(b"")

    for gate in ("upstream_suite", "behaviour_tests", "behaviour_style"):
        monkeypatch.setattr(gates, gate, meddle if gate == "upstream_suite" else nothing)

    outcome = gated.run("test")

    assert outcome.code == 1
    assert "1.0.0: checkout clean: the gates changed the checkout" in outcome.out
    assert "__pycache__" in outcome.out


@pytest.mark.usefixtures("bases_only")
def test_a_base_that_cannot_be_prepared_does_not_keep_another_from_being_tested(gated: GatedProject) -> None:
    gated.release("1.1.0", line="1.1", core=CORE, workspace=WORKSPACE)
    gated.layout.series("1.1").mkdir()
    gated.patches(FIX)
    gated.expected(OVERRULED)

    outcome = gated.run("test", "--base", "all")

    assert outcome.code == 2
    assert "1.1.0: apply: contract: contract.toml does not say what 1.1.0 promises" in outcome.out
    assert outcome.out.splitlines()[-1] == "7 passed, 0 failed"


def test_named_tests_are_shown_without_and_with_the_patches(gated: GatedProject) -> None:
    gated.patches(FIX)
    names = f"{TEST}::test_is_no_other tests/core/test_upstream.py::test_divides[41]"

    outcome = gated.run("test", "--tests", f"{names} {TEST}::test_absent")

    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in outcome.out.splitlines() if "::" in line]
    assert [row for row in rows if row] == [
        [f"{TEST}::test_is_no_other[41]", "failed", "passed"],
        [f"{TEST}::test_is_no_other[43]", "passed", "passed"],
        ["tests/core/test_upstream.py::test_divides[41]", "passed", "failed"],
    ]
    assert outcome.code == 1
    assert "1 tests fail on the patched core, 1 were not found" in outcome.out
    assert f"{TEST}::test_absent: not found" in outcome.out
    assert outcome.out.splitlines()[-1] == "2 passed, 1 failed"


CLASSES = f"""{COPYRIGHT}
import pytest

from agent_framework import answer


class TestAnswer:
    @pytest.mark.parametrize("value", ["42", "a::b"])
    def test_is(self, value: str) -> None:
        assert str(answer()) == value


class TestAnswers:
    def test_is_a_number(self) -> None:
        assert isinstance(answer(), int)
"""


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (
            f"python/packages/core/{TEST}",
            {
                f"{TEST}::test_is_no_other[41]": "failed passed",
                f"{TEST}::test_is_no_other[43]": "passed passed",
                f"{TEST}::test_is_the_answer": "failed passed",
            },
        ),
        (
            "tests/core/test_classes.py::TestAnswer",
            {
                "tests/core/test_classes.py::TestAnswer::test_is[42]": "failed passed",
                "tests/core/test_classes.py::TestAnswer::test_is[a::b]": "failed failed",
            },
        ),
    ],
    ids=["a file", "a class"],
)
def test_a_file_or_a_class_is_all_of_its_tests(gated: GatedProject, named: str, expected: dict[str, str]) -> None:
    gated.patches(FIX)
    gated.behaviour({"tests/core/test_classes.py": CLASSES})

    outcome = gated.run("test", "--tests", named)

    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in outcome.out.splitlines() if "::" in line]
    assert {row[0]: " ".join(row[1:]) for row in rows if row} == expected
    assert ": not found" not in outcome.out
    assert outcome.code == ("failed failed" in expected.values())


def test_a_file_that_cannot_be_imported_or_is_not_there_is_told(gated: GatedProject) -> None:
    gated.patches(FIX)
    gated.behaviour({"tests/core/test_broken.py": f"{COPYRIGHT}\nimport nowhere\n"})

    outcome = gated.run("test", "--tests", "tests/core/test_broken.py tests/core/test_absent.py")

    assert outcome.code == 1
    assert "tests/core/test_broken.py: ModuleNotFoundError: No module named 'nowhere'" in outcome.out
    assert "tests/core/test_absent.py: not found" in outcome.out


def test_the_progress_of_many_named_tests_is_a_short_line(gated: GatedProject) -> None:
    gated.patches(FIX)
    names = [f"{TEST}::test_is_the_answer", *(f"{TEST}::test_{number}" for number in range(30))]

    outcome = gated.run("test", "--tests", " ".join(names))

    assert f"1.0.0: {names[0]} and 30 more, patched ..." in outcome.err.splitlines()
    assert max(len(line) for line in outcome.err.splitlines()) < 120


def test_the_unpatched_suite_is_run_once(gated: GatedProject, monkeypatch: pytest.MonkeyPatch) -> None:
    gated.patches(FIX)
    base = prepare(gated.layout, releases.load(gated.layout).default)
    first = net.run_stock(base)
    titles: list[str] = []
    run = net.run_suite

    def counted(base: Base, core: Path, title: str) -> Report:
        titles.append(title)
        return run(base, core, title)

    monkeypatch.setattr(net, "run_suite", counted)

    assert net.run_stock(base) == first
    assert titles == []

    assert net.run_stock(replace(base, env=replace(base.env, digest="another"))) == first
    assert titles == ["1.0.0: upstream's suite, unpatched"]


def test_tests_that_are_lost_are_run_again_alone_on_both(gated: GatedProject) -> None:
    gated.patches(FIX)
    base = prepare(gated.layout, releases.load(gated.layout).default)
    tests = frozenset(f"tests/core/test_upstream.py::test_divides[{number}]" for number in (1, 41))

    stock, patched = net.run_again(base, tests)

    assert stock.passed == tests
    assert patched.passed == {"tests/core/test_upstream.py::test_divides[1]"}
    assert patched.tests.keys() == tests


def test_a_release_without_tests_is_held_against_those_of_the_newest_before_it(gated: GatedProject) -> None:
    gated.release("0.9.0", core=CORE, workspace=WORKSPACE)
    gated.release("1.1.0", line="1.1", core=CORE)

    known = releases.load(gated.layout)

    assert suites.suite_of(gated.layout, known.get("1.1.0")).provider.version == "1.0.0"
    assert suites.suite_of(gated.layout, known.get("1.0.0")).provider.version == "1.0.0"


def test_a_release_without_any_tests_before_it_is_told(project: Project) -> None:
    with pytest.raises(PatchsetError, match=r"no release up to 1\.0\.0 carries a suite"):
        suites.suite_of(project.layout, releases.load(project.layout).default)


@pytest.mark.parametrize("command", ["test", "prove"])
def test_a_python_that_is_too_old_stops_before_anything_is_made(
    project: Project, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(envs, "OLDEST", (4, 0))

    message = project.bad(2, command)

    assert "is too old for the gates, 4.0 or newer is needed" in message
    assert "make PYTHON=" in message
    assert not project.layout.checkouts.exists()


def test_the_tests_of_the_tooling_are_counted(project: Project) -> None:
    folder = project.layout.root / "tests"
    folder.mkdir()
    (folder / "test_it.py").write_text(
        "import os\n\n\ndef test_good():\n    assert os.environ['PATCHSET_BASES'] == '1.0.0'\n\n\n"
        "def test_bad():\n    assert 1 == 2\n"
    )
    (project.layout.root / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    gate = Gate("tooling", "tests")

    with pytest.raises(PatchsetError) as raised:
        gates.tooling_tests(project.layout, releases.load(project.layout).resolve("all"), gate)

    assert (gate.tests_passed, gate.tests_failed) == (1, 1)
    assert raised.value.output == "tests/test_it.py::test_bad: assert 1 == 2"
    assert raised.value.where == "build/logs/tooling.log"


def test_the_worst_status_is_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(gate: Gate) -> None:
        raise PatchsetError("x", "it fails", exit_code=2)

    session = Session()
    session.gate("1.0.0", "good", lambda gate: None)

    assert session.finish("make test") == 0

    session.gate("1.0.0", "bad", fail)

    assert session.finish("make test") == 2
    assert capsys.readouterr().out.endswith("1.0.0: bad: x: it fails\n0 passed, 0 failed\n")


# region environments and core


def test_an_environment_is_made_once_per_lock(project: Project, index: Path) -> None:
    release = releases.load(project.layout).default
    lock = project.layout.requirements / "1.0.0.txt"
    project.layout.requirements.mkdir()
    (project.layout.requirements / "1.0.0.in").write_text("leaf<2\n")
    project.good("lock")

    env = ensure_env(project.layout, release)

    (installed,) = env.root.glob("lib/*/site-packages/leaf-*.dist-info")
    assert installed.name == "leaf-1.0.dist-info"
    made = (env.root / "pyvenv.cfg").stat().st_ino
    shutil.rmtree(index)
    assert ensure_env(project.layout, release) == env
    assert (env.root / "pyvenv.cfg").stat().st_ino == made

    lock.write_text(lock.read_text().replace("0", "1", 1))
    with pytest.raises(PatchsetError, match=r"requirements/1\.0\.0\.txt cannot be installed"):
        ensure_env(project.layout, release)
    assert not (env.root / "stamp").exists()


def test_a_package_that_is_not_the_locked_one_is_refused(project: Project, index: Path) -> None:
    project.layout.requirements.mkdir()
    (project.layout.requirements / "1.0.0.txt").write_text(f"leaf==1.0 \\\n    --hash=sha256:{'0' * 64}\n")

    with pytest.raises(PatchsetError) as refused:
        ensure_env(project.layout, releases.load(project.layout).default)

    assert "Hash mismatch" in (refused.value.output or "")
    assert "next:" in refused.value.render()


def test_a_release_without_a_lock_is_told(project: Project) -> None:
    with pytest.raises(PatchsetError) as refused:
        ensure_env(project.layout, releases.load(project.layout).default)

    assert refused.value.exit_code == 2
    assert "requirements/1.0.0.txt is missing" in refused.value.what
    assert "make lock BASE=1.0.0" in (refused.value.next or "")


def test_files_of_a_commit_are_written_byte_for_byte_without_a_trace(project: Project, tmp_path: Path) -> None:
    project.good("apply")
    (project.checkout / ".gitattributes").write_text("* text=auto eol=lf export-subst\nLICENSE export-ignore\n")
    script = project.checkout / CORE_PATH / "run.sh"
    script.write_bytes(b"#!/bin/sh\r\n$Format:%H$\n")
    script.chmod(0o755)
    project.git("add", "--all")
    project.git("commit", "--quiet", "--message", "x")
    (project.checkout / "untracked").write_text("x")
    before = project.git("status", "--porcelain")

    export(project.checkout, "HEAD", tmp_path / "out", CORE_PATH)

    assert project.git("status", "--porcelain") == before
    written = {path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*") if path.is_file()}
    tracked = plain_git(project.checkout, "ls-files", str(CORE_PATH)).splitlines()
    assert written == {Path(name) for name in tracked}
    assert (tmp_path / "out" / CORE_PATH / "run.sh").read_bytes() == b"#!/bin/sh\r\n$Format:%H$\n"
    assert (tmp_path / "out" / CORE_PATH / "run.sh").stat().st_mode & 0o111
    assert (
        tmp_path / "out" / CORE_PATH / "agent_framework/_crlf.py"
    ).read_bytes() == b"first = 1\r\nsecond = 2\r\nthird = 3\r\n"


def test_core_of_a_commit_is_installed_by_itself_and_built_once(
    gated: GatedProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated.good("apply")
    commit = gated.git("rev-parse", "HEAD")

    site = core_site(gated.layout, gated.env, gated.checkout, commit)

    assert sorted(path.name for path in site.iterdir()) == ["agent_framework", "agent_framework_core-1.0.0.dist-info"]
    assert (site / ANSWER).read_bytes() == answer(41)
    monkeypatch.setattr("patchset.core.build_wheel", None)
    assert core_site(gated.layout, gated.env, gated.checkout, commit) == site
    assert [path.name for path in gated.layout.cores.iterdir()] == [commit]
