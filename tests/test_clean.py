"""`make clean`: nothing that somebody made goes away with what was made, and what it says to do about it works."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from support import AGENTS, FIRST, Project, edited, plain_git
from test_upstream import clone as clone  # the fixture

WORKS = {
    "edit": "has uncommitted changes",
    "commit": "has commits that are not in the series",
    "on a branch": "is on the branch mine, not on patched",
    "on no branch": "is on no branch, not on patched",
    "branch": "has work that would be lost: mine",
    "stash": "has work that would be lost: stash",
    "am": "a `git am` stopped or was interrupted",
}
MINE = edited(line_5="'mine'")


def work_on(checkout: Path, work: str) -> None:
    """Leave somebody's work in a checkout."""

    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.invalid")
        plain_git(checkout, *identity, *arguments)

    (checkout / "python/packages/core" / AGENTS).write_bytes(MINE)
    if work == "stash":
        git("stash", "push", "--quiet", "--message", "Mine")
    if work in {"edit", "stash"}:
        return
    if work != "commit":
        git("checkout", "--quiet", *(["--detach"] if work == "on no branch" else ["-b", "mine"]))
    git("commit", "--quiet", "--all", "--message", "Mine")
    if work in {"branch", "am"}:
        git("checkout", "--quiet", "patched")
    if work == "am":
        git("format-patch", "--quiet", "--output", ".git/mine.patch", "mine~1..mine")
        git("reset", "--quiet", "--hard", "refs/patchset/base")
        with pytest.raises(AssertionError):
            git("am", "--quiet", ".git/mine.patch")


def ways(message: str) -> dict[str, str]:
    """Return the commands of the ways out that a message names, by what they do."""
    shown = message.partition("  next:  ")[2].splitlines()
    return {way.removeprefix("or "): does for way, _, does in (line.strip().partition(": ") for line in shown)}


def follow(project: Project, commands: str) -> None:
    """Type what a message says; what is typed after `make` is a command of the tooling."""
    for command in commands.replace(", then the same command again", " && make clean").split(" && "):
        if command.startswith("make "):
            name, *base = command.removeprefix("make ").split(" BASE=")
            project.good(name, *(["--base", *base] if base else []))
        else:
            if command.endswith(" commit"):
                command += " --all --message Mine"
            identity = "-c user.name=Somebody -c user.email=somebody@example.invalid"
            typed = command.replace("git -C", f"git {identity} -C")
            subprocess.run(shlex.split(typed), check=True, cwd=project.layout.root, capture_output=True)


def test_what_can_be_made_again_may_go(project: Project) -> None:
    project.good("clean")
    project.series(FIRST)
    project.good("apply")
    project.good("clean")


@pytest.mark.parametrize("work", WORKS)
def test_work_is_kept(project: Project, work: str) -> None:
    project.series(FIRST)
    project.good("apply")
    work_on(project.checkout, work)

    message = project.bad(2, "clean")

    assert message.startswith("clean: ")
    assert WORKS[work] in message
    found = ways(message)
    assert ("keep it as patches" in found) == (work in {"edit", "commit"})
    assert "make apply" not in message.partition("next:")[2]

    follow(project, found["keep it"])
    kept = project.layout.root.parent / "1.0.0.kept"
    assert not project.checkout.exists()
    if work == "edit":
        assert (kept / "python/packages/core" / AGENTS).read_bytes() == MINE
    else:
        assert "Mine" in plain_git(kept, "log", "--all", "--format=%s", *(["HEAD"] if work != "stash" else []))


@pytest.mark.parametrize("work", ["edit", "commit"])
def test_work_on_the_release_that_a_line_is_written_on_can_be_kept_as_patches(project: Project, work: str) -> None:
    project.series(FIRST)
    project.good("apply")
    work_on(project.checkout, work)

    follow(project, ways(project.bad(2, "clean"))["keep it as patches"])

    assert (project.layout.series("1.0") / "0002-Mine.patch").is_file()
    assert project.git("status", "--porcelain") == ""


@pytest.mark.parametrize("kind", ["older release", "clone of upstream", "not served any more"])
@pytest.mark.parametrize("work", ["edit", "commit", "am"])
def test_work_that_no_export_takes_is_kept_with_its_checkout(
    project: Project, clone: Path, kind: str, work: str
) -> None:
    project.release("0.9.0", line="1.0")
    project.series(FIRST)
    if kind == "clone of upstream":
        project.good("apply", "--upstream", str(clone))
    else:
        project.good("apply", "--base", "0.9.0")
    checkout = project.layout.checkout("upstream" if kind == "clone of upstream" else "0.9.0")
    if kind == "not served any more":
        project.release("0.9.0")
    work_on(checkout, work)

    message = project.bad(2, "clean")

    assert f"clean: build/checkouts/{checkout.name} has" in message or f"in build/checkouts/{checkout.name}" in message
    assert "BASE=" not in message
    found = ways(message)
    assert list(found) == ["keep it", "drop it"]

    follow(project, found["keep it" if work == "commit" else "drop it"])
    assert not checkout.exists()
    assert (project.layout.root.parent / f"{checkout.name}.kept").exists() == (work == "commit")
