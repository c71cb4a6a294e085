"""`make try`: what a release that nobody serves yet makes of a series, and that nothing is changed by asking."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from patchset import releases
from support import AGENTS, CORE_FILES, FIRST, NUMBERS, SECOND, WORKSPACE_FILES, Change, Project, edited, make_archive
from test_fetch import no_index as no_index  # the fixture

THIRD = Change(
    "Python: Change the fifth line again",
    {AGENTS: edited(line_5="5.0", line_40="'forty'")},
    why="The fifth line is dull again.",
)
CORE_PATH = f"python/packages/core/{AGENTS}"


@pytest.fixture
def index(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose pip knows the published archives and nothing else."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(project.published))
    return project


def publish(
    project: Project, version: str = "1.1.0", *, core: Mapping[str, bytes] | None = None, pins: bytes = b""
) -> dict[str, object]:
    """Publish a release that the table does not have, and return what its row would be."""
    root = WORKSPACE_FILES["pyproject.toml"] + pins
    project.release(version, core=core, workspace={"pyproject.toml": root} if pins else None, cached=False)
    row = project.rows.pop(version)
    project.write_table()
    return row


def kept(project: Project) -> dict[str, bytes]:
    """Return every file that is not made under `build/`, and the checkouts."""
    root = project.layout.root
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
        and (not path.is_relative_to(project.layout.build) or path.is_relative_to(project.layout.checkouts))
    }


def results(out: str) -> list[tuple[str, str]]:
    """Return the result and the number of places of each patch."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines() if line.startswith("|")]
    return [(row[1], row[2]) for row in rows if row[0][:1].isdigit()]


def test_a_release_that_the_table_does_not_have(index: Project) -> None:
    index.series(FIRST, SECOND)
    row = publish(index, core={AGENTS: b"# a new first line\n" + NUMBERS.encode()})
    before = kept(index)

    outcome = index.good("try", "--base", "1.1.0")

    assert results(outcome.out) == [("applies", ""), ("applies", "")]
    assert "1.1.0 with the line 1.0: 2 apply" in outcome.out
    assert "1.1.0 is not in patches/releases.toml; its row would be:" in outcome.out
    assert 'to serve it: add line = "1.0" and local = 1 to its row' in outcome.out
    assert kept(index) == before
    assert list(index.layout.work.iterdir()) == []
    recorded = index.layout.build / "try/1.1.0.toml"
    assert recorded.read_text().strip() in outcome.out
    (found,) = releases.read(index.layout, recorded)
    for key in ("core_sha256", "core_size", "workspace_sha256", "workspace_size"):
        assert getattr(found, key) == row[key]
    assert (found.ruff, found.pyright, found.suite, found.line) == ("0.1", "1.1", False, None)
    assert 'ruff = "0.1"  # as for 1.0.0, to be tried, none is pinned\n' in recorded.read_text()

    index.layout.releases_toml.write_text(f"{index.layout.releases_toml.read_text()}\n{recorded.read_text()}")
    assert "its row would be" not in index.good("try", "--base", "1.1.0").out


def test_pins_and_suite_are_read_from_the_archives(index: Project) -> None:
    pins = b'\n[dependency-groups]\ndev = ["ruff==0.9.1", "pyright==1.2.3", "pytest>=9", {include-group = "x"}, "=="]\n'
    index.release(
        "1.1.0",
        workspace={
            "pyproject.toml": WORKSPACE_FILES["pyproject.toml"] + pins,
            "packages/core/tests/test_x.py": b"def test_x(): pass\n",
        },
    )
    del index.rows["1.1.0"]
    index.write_table()

    index.good("try", "--base", "1.1.0")

    (found,) = releases.read(index.layout, index.layout.build / "try/1.1.0.toml")
    assert (found.ruff, found.pyright, found.suite) == ("0.9.1", "1.2.3", True)
    assert "none is pinned" not in (index.layout.build / "try/1.1.0.toml").read_text()


def test_a_conflict_names_upstreams_lines_and_the_next_patches_are_tried_as_well(index: Project) -> None:
    index.series(FIRST, SECOND, THIRD)
    publish(index, core={AGENTS: b"# one more\n" + edited(line_5="'fünf'")})
    before = kept(index)

    outcome = index.run("try", "--base", "1.1.0")

    assert outcome.code == 1
    # The third changes what the first one brought in.
    assert results(outcome.out) == [("conflicts", "1"), ("applies", ""), ("applies", "")]
    shown = outcome.out.splitlines()
    place = shown.index(f"  {CORE_PATH}:6 of 1.1.0")
    assert shown[place - 2].startswith("patch 1 of 3 (0001-Python-Change-the-fifth-line.patch): ")
    assert [line.strip() for line in shown[place + 1 : place + 5]] == [
        "--- 1.0.0",
        "+++ 1.1.0",
        "-line_5 = 5",
        "+line_5 = 'fünf'",
    ]
    assert "try: 1 of 3 patches of the line 1.0 does not apply to 1.1.0" in outcome.err
    assert "next:" in outcome.err
    assert "to serve it" not in outcome.out
    assert kept(index) == before
    assert f"{CORE_PATH}:6 of 1.1.0" in (index.layout.build / "try/1.1.0-1.0.txt").read_text()


def test_other_surroundings_are_no_conflict_when_a_merge_brings_the_patch_in(index: Project) -> None:
    index.series(FIRST, SECOND)
    publish(index, core={AGENTS: edited(line_3="3.0")})

    outcome = index.run("try", "--base", "1.1.0")

    assert outcome.code == 1
    assert results(outcome.out) == [("merges", "1"), ("applies", "")]
    assert f"  {CORE_PATH}:2, hunk 1 of 1 (@@ -2,7 +2,7 @@" in outcome.out


def test_what_is_already_there_is_told(index: Project) -> None:
    index.series(FIRST, SECOND)
    publish(index, core={AGENTS: edited(line_5="'five'")})

    outcome = index.run("try", "--base", "1.1.0")

    assert results(outcome.out) == [("already there", ""), ("applies", "")]
    assert "it looks already applied: 1.1.0 has every change of it; to be removed when the base has it" in outcome.out


def test_long_changes_of_upstream_are_cut_on_the_screen_and_kept_in_full(index: Project) -> None:
    index.series(FIRST)
    long = "".join(f"more_{number} = {number}\n" for number in range(30))
    publish(index, core={AGENTS: NUMBERS.replace("line_5 = 5\n", long).encode()})

    out = index.run("try", "--base", "1.1.0").out

    assert "+more_29 = 29" not in out
    assert "... and 21 lines more" in out
    assert "+more_29 = 29" in (index.layout.build / "try/1.1.0-1.0.txt").read_text()


ADDED = "agent_framework/_added.py"
OTHER_FILES = [
    ({AGENTS: None}, FIRST, f"{CORE_PATH}: 1.1.0 has no such file"),
    (
        {"agent_framework/_open_end.py": b"end = False"},
        Change("Python: Remove a file", {"agent_framework/_open_end.py": None}),
        "the patch removes it, and 1.1.0 has it otherwise than 1.0.0",
    ),
    ({ADDED: b"other = 1\n"}, Change("Python: Add a file", {ADDED: b"added = 1\n"}), f"{ADDED}:1 of 1.1.0"),
    ({AGENTS: NUMBERS.replace("\n", "\r\n").encode()}, FIRST, "line endings differ (CRLF against LF)"),
    ({AGENTS: b"\0\1"}, FIRST, f"{CORE_PATH}: not a text; 1.1.0 has it otherwise than 1.0.0"),
]


@pytest.mark.parametrize(
    ("core", "change", "said"), OTHER_FILES, ids=["missing", "removed", "added", "line endings", "binary"]
)
def test_files_that_do_not_go_together(
    index: Project, core: dict[str, bytes | None], change: Change, said: str
) -> None:
    rest = Change("Python: Change the licence", {"LICENSE": b"MIT, still\n"})
    index.series(change, rest)
    publish(index, core={name: content for name, content in core.items() if content is not None})
    if None in core.values():
        files = {name: content.replace(b"1.0.0", b"1.1.0") for name, content in CORE_FILES.items() if name not in core}
        make_archive(index.published / "agent_framework_core-1.1.0.tar.gz", files)

    outcome = index.run("try", "--base", "1.1.0")

    assert outcome.code == 1, outcome.err
    assert said in outcome.out
    assert results(outcome.out) == [("conflicts", "1"), ("applies", "")]


@pytest.mark.usefixtures("index")
def test_a_release_that_cannot_be_had_leaves_nothing(project: Project) -> None:
    publish(project, "1.1.0")

    message = project.bad(2, "try", "--base", "9.9.9")

    assert "fetch: the package index has no source of agent-framework-core 9.9.9\n" in message
    assert "state: the newest that it has: 1.1.0, 1.0.0\n" in message
    assert "next:  give a release that there is as BASE=, as in: make try BASE=1.1.0\n" in message
    assert "build/cache" not in message
    assert list((project.layout.build / "try").iterdir()) == []
    assert not list(project.layout.cache.glob("*9.9.9*"))


def test_an_index_that_has_nothing_at_all_is_told(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(project.layout.root / "empty"))
    (project.layout.root / "empty").mkdir()

    message = project.bad(2, "try", "--base", "9.9.9")

    assert "state: it has none of agent-framework-core at all\n" in message
    assert "next:  check pip's index settings (pip config list)\n" in message


def test_an_archive_that_is_another_one_than_was_recorded_is_refused(index: Project) -> None:
    publish(index)
    index.good("try", "--base", "1.1.0")
    cached = index.layout.cache / "agent_framework_core-1.1.0.tar.gz"
    cached.write_bytes(cached.read_bytes() + b"\0")

    message = index.bad(1, "try", "--base", "1.1.0")

    assert "agent_framework_core-1.1.0.tar.gz in the cache is not the published archive" in message


def test_a_served_release_fits_its_own_line(project: Project) -> None:
    project.series(FIRST, SECOND)

    out = project.good("try", "--base", "1.0.0", "--line", "1.0").out

    assert results(out) == [("applies", ""), ("applies", "")]
    assert "to serve it" not in out


def test_a_series_that_does_not_apply_where_it_is_written(project: Project) -> None:
    project.series(FIRST)
    project.release("1.0.0", line="1.0", core={AGENTS: b"other\n"})

    message = project.bad(1, "try", "--base", "1.0.0")

    assert "the series does not apply to 1.0.0, which it is written on" in message
    assert "next:  make apply BASE=1.0.0" in message


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "try: which release?"),
        (("--base", "newest"), "try: newest is not a version"),
        (("--base", "1.1.0", "--line", "2.0"), "there is no line 2.0"),
    ],
)
def test_what_cannot_be_tried(project: Project, arguments: tuple[str, ...], said: str) -> None:
    message = project.bad(2, "try", *arguments)

    assert said in message
    assert "next:" in message
    assert not (project.layout.build / "try").exists()
