"""`make clean`: nothing that somebody made goes away with what was made."""

from __future__ import annotations

import pytest

from support import FIRST, Project


def test_what_can_be_made_again_may_go(project: Project) -> None:
    project.good("clean")
    project.series(FIRST)
    project.good("apply")
    project.good("clean")


@pytest.mark.parametrize(
    ("work", "what"),
    [
        ("edit", "has uncommitted changes"),
        ("commit", "has commits that are not in the series"),
        ("branch", "has work that would be lost: mine"),
        ("stash", "has work that would be lost: stash"),
    ],
)
def test_work_is_kept(project: Project, work: str, what: str) -> None:
    project.series(FIRST)
    project.good("apply")
    project.core_file().write_bytes(b"mine\n")
    if work in {"commit", "branch"}:
        project.git("checkout", "--quiet", "-b", "mine")
        project.git("commit", "--quiet", "--all", "--message", "Mine")
        project.git("checkout", "--quiet", "patched")
    if work == "commit":
        project.git("merge", "--quiet", "mine")
    if work == "stash":
        project.git("stash", "--quiet")
    message = project.bad(2, "clean")
    assert f"clean: build/checkouts/1.0.0 {what}" in message
    assert "next:" in message
