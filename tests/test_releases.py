"""The table of releases: strict, and told apart by version rather than by its order."""

from __future__ import annotations

import pytest

from patchset.errors import PatchsetError
from patchset.paths import Layout
from patchset.releases import load
from support import Project


def wrong(project: Project, old: str, new: str) -> str:
    """Change the table and return what is said about it."""
    path = project.layout.releases_toml
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    message = project.bad(2, "apply")
    assert "where: patches/releases.toml" in message
    assert not project.layout.checkouts.exists()
    return message


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("suite = false", "", "release 1.0.0: suite is missing"),
        ("suite = false", "suite = 0", "release 1.0.0: suite is not bool"),
        ("suite = false", "suite = false\nsweet = 1", "release 1.0.0: unknown key sweet"),
        ("local = 1", "local = true", "release 1.0.0: local is not int"),
        ("local = 1", "", "release 1.0.0: `line` and `local` come together"),
        ("version = '1.0.0'", "version = 'one'", "release one: the version is not one"),
        ("version = '1.0.0'", "", "release 1: version is missing"),
        ("[[release]]", "[[releases]]", "releases.toml may have [[release]] rows and nothing else"),
        ("[[release]]", "[release]", "releases.toml may have [[release]] rows and nothing else"),
        ("[[release]]", "[[release", "releases.toml cannot be read: "),
    ],
)
def test_a_row_that_is_no_release(project: Project, old: str, new: str, what: str) -> None:
    assert what in wrong(project, old, new)


def test_a_release_with_two_rows(project: Project) -> None:
    text = project.layout.releases_toml.read_text()
    assert "1.0.0 has two rows" in wrong(project, text, text + text)


def test_a_missing_table(project: Project) -> None:
    project.layout.releases_toml.unlink()
    assert "releases.toml cannot be read: " in project.bad(2, "apply")


def test_nothing_served(project: Project) -> None:
    project.release("1.0.0")
    assert "no release is served" in project.bad(2, "apply")


def test_releases_are_in_the_order_of_their_versions(project: Project) -> None:
    for version in ("1.10.0", "1.9.0", "1.9.0rc1"):
        project.release(version, line="1.9")
    releases = load(project.layout)
    assert [row.version for row in releases.rows] == ["1.0.0", "1.9.0rc1", "1.9.0", "1.10.0"]
    assert {line: rows[-1].version for line, rows in releases.lines().items()} == {"1.0": "1.0.0", "1.9": "1.10.0"}
    assert releases.default.wheel_version == "1.10.0+turnscope.1"


def test_the_projects_own_table_can_be_read() -> None:
    releases = load(Layout.discover())
    versions = [row.version for row in releases.rows]
    assert versions[0] == "1.11.0"
    assert {"1.14.0", "1.23.0"} <= set(versions)
    assert "1.14.0" in [row.version for row in releases.served]


def test_errors_are_one_block_of_plain_text() -> None:
    error = PatchsetError("step", "what", where="a\nb", why="c", state="d", next="e\nf", output="x\ny\n")
    assert str(error).splitlines() == [
        "step: what",
        "  | x",
        "  | y",
        "  where: a",
        "         b",
        "  why:   c",
        "  state: d",
        "  next:  e",
        "         f",
    ]
