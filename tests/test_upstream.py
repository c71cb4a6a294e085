"""`make apply UPSTREAM=`: a clone under build/, the original only read, its differences told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from patchset.paths import CORE
from support import AGENTS, FIRST, NUMBERS, SECOND, Project, edited, plain_git

FILES = 6  # in the archive, but for its metadata


@pytest.fixture
def clone(project: Project) -> Path:
    """A clone as a person has it, made from the base, with its own attributes and history."""
    project.good("apply")
    clone = project.layout.root / "clone"
    plain_git(project.layout.root, "clone", "--quiet", str(project.checkout), str(clone))
    (clone / ".gitattributes").write_text("* text=auto eol=crlf\n*.py diff=python export-subst\n")
    commit(clone, "Attributes")
    plain_git(clone, "tag", "python-1.0.0")
    return clone


def commit(clone: Path, message: str) -> str:
    plain_git(clone, "add", "--all")
    identity = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.invalid")
    plain_git(clone, *identity, "commit", "--quiet", "--message", message)
    return plain_git(clone, "rev-parse", "HEAD")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, that of its repository included."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_patches_are_applied_to_a_clone_and_the_original_is_only_read(project: Project, clone: Path) -> None:
    project.series(FIRST, SECOND)
    # Work in progress of the original is neither taken nor touched.
    (clone / CORE / AGENTS).write_bytes(b"work in progress\n")
    before = contents(clone)
    out = project.good("apply", "--upstream", str(clone), "--ref", "python-1.0.0").out
    assert contents(clone) == before
    assert f"  {FILES} files equal\n" in out
    assert "python-1.0.0: 2 patches applied (build/checkouts/upstream-python-1.0.0 at " in out
    made = project.layout.checkout("upstream-python-1.0.0")
    assert (made / CORE / AGENTS).read_bytes() == SECOND.edits[AGENTS]
    assert plain_git(made, "rev-parse", "HEAD~2") == plain_git(clone, "rev-parse", "python-1.0.0")
    assert plain_git(made, "status", "--porcelain") == ""


def test_a_second_time_there_is_nothing_to_do(project: Project, clone: Path) -> None:
    project.series(FIRST)
    project.good("apply", "--upstream", str(clone))
    out = project.good("apply", "--upstream", str(clone)).out
    assert "nothing to do, 1 patch already applied (build/checkouts/upstream at " in out
    # The clone went on; so does the checkout.
    (clone / CORE / "agent_framework/_more.py").write_bytes(b"more = 1\n")
    commit(clone, "More")
    out = project.good("apply", "--upstream", str(clone)).out
    assert "  not in the archive: agent_framework/_more.py\n" in out
    assert "the HEAD of the clone: 1 patch applied (build/checkouts/upstream at " in out


@pytest.mark.parametrize("ref", ["branch", "commit", "tag"])
def test_a_ref_is_a_tag_a_branch_or_a_commit(project: Project, clone: Path, ref: str) -> None:
    project.series(FIRST)
    plain_git(clone, "branch", "side")
    wanted = plain_git(clone, "rev-parse", "HEAD")
    commits = {"branch": "side", "commit": wanted, "tag": "python-1.0.0"}
    (clone / CORE / AGENTS).write_bytes(b"later\n")
    commit(clone, "Later")
    out = project.good("apply", "--upstream", str(clone), "--ref", commits[ref]).out
    assert f"core source of {wanted[:12]} against the archive of 1.0.0:" in out


def test_line_endings_are_told_apart_from_edits(project: Project, clone: Path) -> None:
    project.series(FIRST)
    (clone / ".gitattributes").unlink()
    (clone / CORE / "agent_framework/_crlf.py").write_bytes(b"first = 1\nsecond = 2\nthird = 3\n")
    (clone / CORE / "agent_framework/_open_end.py").write_bytes(b"end = False")
    (clone / CORE / AGENTS).write_bytes(edited(line_50="50.0"))
    (clone / CORE / "LICENSE").unlink()
    commit(clone, "Otherwise")
    out = project.good("apply", "--upstream", str(clone)).out
    assert f"  {FILES - 4} files equal\n" in out
    assert "  differ in line endings only: agent_framework/_crlf.py\n" in out
    assert f"  edited: {AGENTS}, agent_framework/_open_end.py\n" in out
    assert "  missing: LICENSE\n" in out
    assert "the HEAD of the clone: 1 patch applied" in out


@pytest.mark.parametrize(
    ("content", "state"),
    [
        (NUMBERS.replace("\n", "\r\n").encode(), "line endings differ (CRLF against LF)"),
        (edited(line_4="0"), "not applied yet; python-1.0.0 reads differently there"),
        (edited(line_5="'five'"), "it looks already applied: python-1.0.0 has every change of it"),
    ],
    ids=["line endings", "edited", "applied"],
)
def test_a_patch_that_does_not_apply_to_the_clone(project: Project, clone: Path, content: bytes, state: str) -> None:
    project.series(FIRST)
    (clone / ".gitattributes").unlink()
    (clone / CORE / AGENTS).write_bytes(content)
    commit(clone, "Otherwise")
    plain_git(clone, "tag", "--force", "python-1.0.0")
    outcome = project.run("apply", "--upstream", str(clone), "--ref", "python-1.0.0")
    assert outcome.code == 1
    assert AGENTS in outcome.out, "the difference is told first"
    assert "\napply: patch 1 of 1 (0001-Python-Change-the-fifth-line.patch): " in outcome.err
    assert state in outcome.err
    assert f"or give up: git -C build/checkouts/upstream-python-1.0.0 am --abort && make apply UPSTREAM={clone}" in (
        outcome.err
    )
    assert "make export" not in outcome.err
    again = project.bad(2, "apply", "--upstream", str(clone), "--ref", "python-1.0.0")
    assert "a `git am` stopped or was interrupted in build/checkouts/upstream-python-1.0.0, at patch 1 of 1" in again


def test_work_in_the_clones_checkout_is_left_alone(project: Project, clone: Path) -> None:
    project.series(FIRST)
    project.good("apply", "--upstream", str(clone))
    made = project.layout.checkout("upstream")
    (made / CORE / AGENTS).write_bytes(b"mine\n")
    assert "has uncommitted changes" in project.bad(2, "apply", "--upstream", str(clone))
    commit(made, "Mine")
    message = project.bad(2, "apply", "--upstream", str(clone))
    back = "git -C build/checkouts/upstream reset --hard refs/patchset/series"
    again = f"then: make apply UPSTREAM={clone}"
    assert f"keep them on a branch: git -C build/checkouts/upstream branch mine && {back}, {again}\n" in message
    assert f"or drop them: {back}, {again}\n" in message
    for command in ("branch mine", "reset --quiet --hard refs/patchset/series"):
        plain_git(made, *command.split())
    assert "nothing to do" in project.good("apply", "--upstream", str(clone)).out
    assert plain_git(made, "log", "-1", "--format=%s", "mine") == "Mine"


def test_a_core_that_is_not_served_asks_for_a_base(project: Project, clone: Path) -> None:
    project.series(FIRST)
    (clone / CORE / "pyproject.toml").write_bytes(b'[project]\nversion = "1.1.0"\n')
    commit(clone, "Release")
    message = project.bad(2, "apply", "--upstream", str(clone))
    assert "has core 1.1.0, which is not served" in message
    assert "state: served: 1.0.0" in message
    assert not project.layout.checkout("upstream").exists()
    out = project.good("apply", "--upstream", str(clone), "--base", "1.0.0").out
    assert "  edited: pyproject.toml\n" in out
    assert "1 patch applied" in out


@pytest.mark.parametrize(
    ("upstream", "what"),
    [
        ("missing", "there is no folder missing"),
        ("https://127.0.0.1:9/nowhere.git", "HEAD of https://127.0.0.1:9/nowhere.git cannot be fetched"),
        ("plain", "cannot be fetched"),
        ("other", "it is no commit of agent-framework"),
        ("clone --ref gone", "gone of "),
    ],
)
def test_a_clone_that_cannot_be_used(project: Project, clone: Path, upstream: str, what: str) -> None:
    root = project.layout.root
    (root / "plain").mkdir()
    shutil.copytree(clone, root / "other")
    shutil.rmtree(root / "other" / "python")
    commit(root / "other", "Nothing left")
    name, *more = upstream.split()
    known = name in {"plain", "other", "clone"}
    message = project.bad(2, "apply", "--upstream", str(root / name) if known else name, *more)
    assert what in message
    assert sorted(path.name for path in project.layout.checkouts.iterdir()) == [".lock", "1.0.0"]


def test_a_ref_without_an_upstream(project: Project) -> None:
    assert "REF= goes with UPSTREAM=" in project.bad(2, "apply", "--ref", "x")
