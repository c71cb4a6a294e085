"""`make apply`: what it makes, when it has nothing to do, and what it leaves alone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Generator
from pathlib import Path

import pytest

from patchset import apply as apply_module
from patchset import base as base_module
from patchset import console
from patchset import fetch as fetch_module
from patchset.paths import CORE
from support import AGENTS, CORE_FILES, FIRST, NUMBERS, SECOND, WORKSPACE_FILES, Change, Project, edited


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below `folder`, with its time of change."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_checkout_is_upstreams_layout_byte_for_byte(project: Project) -> None:
    project.good("apply")
    tracked = project.git("ls-files").splitlines()
    wanted = [f"python/{name}" for name in WORKSPACE_FILES] + [f"{CORE}/{name}" for name in CORE_FILES]
    assert tracked == sorted(name for name in wanted if not name.endswith("PKG-INFO"))
    for name, content in CORE_FILES.items():
        if name != "PKG-INFO":
            assert (project.checkout / CORE / name).read_bytes() == content
    assert project.git("symbolic-ref", "--short", "HEAD") == "patched"
    assert project.git("rev-list", "--count", "refs/patchset/base") == "1"


def test_the_patches_are_commits_in_the_order_of_the_file_names(project: Project) -> None:
    project.series(FIRST, SECOND)
    out = project.good("apply").out
    assert "1.0.0: 2 patches applied (build/checkouts/1.0.0 at " in out
    assert project.git("log", "--format=%s", "refs/patchset/base..HEAD").splitlines() == [SECOND.subject, FIRST.subject]
    assert project.core_file().read_bytes() == SECOND.edits[AGENTS]
    assert project.git("rev-parse", "refs/patchset/series") == project.git("rev-parse", "HEAD")
    assert project.git("status", "--porcelain") == ""


def test_commit_ids_are_the_same_on_every_machine(project: Project) -> None:
    """Pinned: what the ids depend on is the archives, the patches and nothing of the machine."""
    project.series(Change(FIRST.subject, FIRST.edits))
    patch = next(iter(project.layout.series("1.0").glob("*.patch")))
    patch.write_text(re.sub(r"(?m)^Date: .*$", "Date: Fri, 2 Jan 2026 00:00:00 +0000", patch.read_text()))
    project.good("apply")
    assert project.git("rev-parse", "refs/patchset/base", "HEAD").splitlines() == [
        "b4d1f3a7fa91075bffda69972f97dc3d5dcd581b",
        "4e2debebac6adf4ec6a4676cd0edee00a9f4183b",
    ]
    assert project.git("log", "--format=%an <%ae> %cn <%ce> %ci", "HEAD").splitlines() == 2 * [
        "agent-framework turnscope <turnscope@localhost> "
        "agent-framework turnscope <turnscope@localhost> 2026-01-01 00:00:00 +0000"
    ]


def test_nothing_to_do_does_nothing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.series(FIRST)
    project.good("apply")
    before = snapshot(project.checkout)

    def no_work(*_: object, **__: object) -> None:
        raise AssertionError("work was done")

    for module, name in (
        (fetch_module, "fetch"),
        (fetch_module, "fetch_archive"),
        (apply_module, "make_base"),
        (apply_module, "apply_series"),
        (base_module, "read_archive"),
    ):
        monkeypatch.setattr(module, name, no_work)
    outcome = project.good("apply")
    assert "1.0.0: nothing to do, 1 patch already applied" in outcome.out
    assert outcome.err == ""
    monkeypatch.undo()
    changed = {name for name, seen in snapshot(project.checkout).items() if before.get(name) != seen}
    assert changed <= {".git/index"}, "git status may refresh the index, and nothing else is touched"


def test_a_changed_series_is_applied_again(project: Project) -> None:
    project.series(FIRST, SECOND)
    project.good("apply")
    project.series(Change("Python: Change the fifth line otherwise", {AGENTS: edited(line_5="5.0")}))
    assert "1.0.0: 1 patch applied" in project.good("apply").out
    assert project.core_file().read_bytes() == edited(line_5="5.0")
    assert project.git("rev-list", "--count", "refs/patchset/base..HEAD") == "1"
    assert "nothing to do" in project.good("apply").out


def test_a_removed_series_gives_the_base(project: Project) -> None:
    for path in project.series(FIRST):
        project.good("apply")
        path.unlink()
    assert "1.0.0: 0 patches applied" in project.good("apply").out
    assert project.core_file().read_bytes() == NUMBERS.encode()


def test_other_archives_make_another_checkout(project: Project) -> None:
    project.series(FIRST)
    project.good("apply")
    before = project.git("rev-parse", "refs/patchset/base")
    project.release("1.0.0", line="1.0", core={"agent_framework/_new.py": b"new = 1\n"})
    assert "1 patch applied" in project.good("apply").out
    assert project.git("rev-parse", "refs/patchset/base") != before
    assert project.core_file("agent_framework/_new.py").exists()


def test_other_archives_do_not_take_somebodys_branch_with_them(project: Project) -> None:
    project.good("apply")
    project.git("branch", "mine")
    project.release("1.0.0", line="1.0", core={"agent_framework/_new.py": b"new = 1\n"})
    assert "build/checkouts/1.0.0 has work that would be lost: mine" in project.bad(2, "apply")
    assert project.git("rev-parse", "mine")


def test_one_command_at_a_time_writes_to_the_checkouts(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.layout.checkouts.mkdir()
    with (project.layout.checkouts / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        waited: list[str] = []

        @contextlib.contextmanager
        def step(title: str) -> Generator[None]:
            waited.append(title)
            fcntl.flock(other, fcntl.LOCK_UN)
            yield

        monkeypatch.setattr(console, "step", step)
        project.good("apply")
    assert waited[0] == "wait for another command that writes to the checkouts"


def test_every_served_release_is_applied_and_failures_are_listed_together(project: Project) -> None:
    project.series(FIRST)
    project.release("1.1.0", line="1.0", core={AGENTS: edited(line_4="0")})
    project.release("1.2.0", line="1.0", core={AGENTS: edited(line_6="0")})
    project.release("1.3.0", line="1.0", core={AGENTS: edited(line_50="0")})
    outcome = project.run("apply", "--base", "all")
    assert outcome.code == 1
    assert "1.0.0: 1 patch applied" in outcome.out
    assert "1.3.0: 1 patch applied" in outcome.out
    assert "does not apply to 1.1.0" in outcome.err
    assert "does not apply to 1.2.0" in outcome.err


def test_the_newest_served_release_is_the_default(project: Project) -> None:
    project.release("1.10.0", line="1.0")
    project.release("1.9.0", line="1.0")
    project.release("1.11.0")
    assert project.good("apply").out.startswith("1.10.0: ")


@pytest.mark.parametrize(
    ("base", "what"), [("0.9.9", "0.9.9 is not a known release"), ("0.9.0", "0.9.0 is known but not served")]
)
def test_an_unknown_base_lists_the_served(project: Project, base: str, what: str) -> None:
    project.release("1.1.0", line="1.0")
    project.release("0.9.0")
    message = project.bad(2, "apply", "--base", base)
    assert what in message
    assert "state: served: 1.0.0, 1.1.0" in message
    assert "next:  give one of them as BASE=, or all" in message
    assert not project.layout.checkouts.exists()


def test_a_dirty_checkout_is_left_alone(project: Project) -> None:
    project.series(FIRST)
    project.good("apply")
    project.core_file().write_bytes(b"mine\n")
    project.core_file("agent_framework/_mine.py").write_bytes(b"mine\n")
    project.series(FIRST, SECOND)
    before = snapshot(project.checkout / "python")
    message = project.bad(2, "apply")
    assert "build/checkouts/1.0.0 has uncommitted changes; it is left alone" in message
    assert f"|  M {CORE}/{AGENTS}" in message
    assert f"| ?? {CORE}/agent_framework/_mine.py" in message
    assert (
        "keep them: git -C build/checkouts/1.0.0 add --all && git -C build/checkouts/1.0.0 commit, then: make export"
        in (message)
    )
    assert "or put them aside: git -C build/checkouts/1.0.0 stash --include-untracked, then: make apply BASE=1.0.0" in (
        message
    )
    assert snapshot(project.checkout / "python") == before


def test_what_tools_leave_behind_is_not_dirt(project: Project) -> None:
    project.good("apply")
    for left in ("agent_framework/__pycache__/a.pyc", ".pytest_cache/x", "agent_framework/_agents.py.rej"):
        path = project.core_file(left)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    assert "nothing to do" in project.good("apply").out


def test_a_commit_by_hand_is_left_alone(project: Project) -> None:
    project.series(FIRST)
    project.good("apply")
    project.core_file().write_bytes(b"mine\n")
    project.git("commit", "--quiet", "--all", "--message", "Mine")
    mine = project.git("rev-parse", "HEAD")
    message = project.bad(2, "apply")
    assert "build/checkouts/1.0.0 has commits that are not in the series; it is left alone" in message
    assert f"| {mine[:7]} Mine" in message
    assert "keep them as patches: make export BASE=1.0.0" in message
    assert "or drop them: git -C build/checkouts/1.0.0 reset --hard refs/patchset/series, then: make apply" in message
    assert project.git("rev-parse", "HEAD") == mine
    project.git("reset", "--quiet", "--hard", "refs/patchset/series")
    assert "nothing to do" in project.good("apply").out


def test_an_amended_patch_is_left_alone(project: Project) -> None:
    project.series(FIRST, SECOND)
    project.good("apply")
    project.git("commit", "--quiet", "--amend", "--message", "Otherwise")
    assert "has commits that are not in the series" in project.bad(2, "apply")


def test_another_branch_is_left_alone(project: Project) -> None:
    project.good("apply")
    project.git("checkout", "--quiet", "-b", "mine")
    message = project.bad(2, "apply")
    assert "is on the branch mine, not on patched" in message
    assert "next:  git -C build/checkouts/1.0.0 checkout patched, then the same command again" in message
    project.git("checkout", "--quiet", "--detach")
    assert "is on no branch, not on patched" in project.bad(2, "apply")


def test_a_patch_that_does_not_apply_is_named_with_its_hunk(project: Project) -> None:
    project.series(FIRST, SECOND)
    project.release("1.0.0", line="1.0", core={AGENTS: edited(line_39="'moved'")})
    message = project.bad(1, "apply")
    assert message.splitlines()[-8:] == [
        "apply: patch 2 of 2 (0002-Python-Change-the-fortieth-line.patch): Python: Change the fortieth line does not "
        "apply to 1.0.0",
        f"  where: {CORE}/{AGENTS}:37, hunk 1 of 1 (@@ -37,7 +37,7 @@ line_36 = 36)",
        "  why:   The fortieth line is dull, very.",
        "  state: not applied yet; 1.0.0 reads differently there",
        "  next:  git -C build/checkouts/1.0.0 am --show-current-patch=diff | git -C build/checkouts/1.0.0 apply "
        "--reject  # applies what fits, the rest goes to *.rej",
        "         edit what is left, then: git -C build/checkouts/1.0.0 add --all && git -C build/checkouts/1.0.0 am "
        "--continue",
        "         then keep it: make export BASE=1.0.0",
        "         or give up: git -C build/checkouts/1.0.0 am --abort && make apply BASE=1.0.0",
    ]


@pytest.mark.parametrize(
    ("core", "place", "state"),
    [
        (
            {AGENTS: edited(line_5="'five'")},
            f"where: {CORE}/{AGENTS}\n",
            "state: it looks already applied: 1.0.0 has every change of it; to be removed when the base has it",
        ),
        (
            {AGENTS: edited(line_5="'five'", line_38="0")},
            f"{CORE}/{AGENTS}:2, hunk 1 of 2 (@@ -2,7 +2,7 @@ line_1 = 1), already there\n",
            "state: 1 of 2 places look already applied, the rest of 1.0.0 reads differently there",
        ),
        (
            {AGENTS: NUMBERS.replace("\n", "\r\n").encode()},
            f"{CORE}/{AGENTS}:2, hunk 1 of 2",
            f"line endings differ (CRLF against LF): {CORE}/{AGENTS}",
        ),
    ],
    ids=["whole", "part", "line endings"],
)
def test_a_patch_that_does_not_apply_says_whether_it_is_there(
    project: Project, core: dict[str, bytes], place: str, state: str
) -> None:
    both = Change("Python: Change two lines", {AGENTS: edited(line_5="'five'", line_40="'forty'")})
    project.series(FIRST if "every change" in state else both)
    project.release("1.0.0", line="1.0", core=core)
    message = project.bad(1, "apply")
    assert place in message
    assert state in message
    assert ("next:  if upstream has it now: git rm patches/1.0/0001-" in message) == ("every change" in state)


def test_on_an_older_release_of_the_line_the_series_is_mended_where_it_is_written(project: Project) -> None:
    project.series(FIRST)
    project.release("0.9.0", line="1.0", core={AGENTS: edited(line_4="0")})
    message = project.bad(1, "apply", "--base", "0.9.0")
    assert "then mend the series where it is written, so that it applies to both: make apply BASE=1.0.0" in message
    assert "make export" not in message


def test_a_patch_for_a_file_that_is_gone_says_so(project: Project) -> None:
    path = project.series(FIRST)[0]
    path.write_text(path.read_text().replace("_agents.py", "_gone.py"))
    assert f"where: {CORE}/agent_framework/_gone.py: No such file or directory" in project.bad(1, "apply")


def test_a_damaged_patch_is_named_with_what_git_says(project: Project) -> None:
    path = project.series(FIRST, SECOND)[1]
    path.write_text(path.read_text().replace("@@ -37,7 +37,7 @@", "@@ -37,9 +37,9 @@"))
    message = project.bad(1, "apply")
    assert "patch 2 of 2 (0002-Python-Change-the-fortieth-line.patch)" in message
    assert "| error: corrupt patch at" in message
    assert "where: " in message


def test_a_file_that_is_no_patch_is_named(project: Project) -> None:
    project.series(FIRST)
    (project.layout.series("1.0") / "0002-notes.patch").write_text("notes\n")
    message = project.bad(1, "apply")
    assert "patch 2 of 2 (0002-notes.patch) is not a patch" in message


def test_an_interrupted_am_is_detected_and_resumed(project: Project) -> None:
    project.series(FIRST, SECOND)
    project.release("1.0.0", line="1.0", core={AGENTS: edited(line_39="'moved'")})
    project.bad(1, "apply")
    before = snapshot(project.checkout)
    message = project.bad(2, "apply")
    assert "apply: a `git am` stopped or was interrupted in build/checkouts/1.0.0, at patch 2 of 2" in message
    assert "Python: Change the fortieth line" in message
    assert "why:   The fortieth line is dull, very." in message
    assert "left alone; what is staged or edited there is kept" in message
    assert "add --all && git -C build/checkouts/1.0.0 am --continue" in message
    assert snapshot(project.checkout) == before
    # What the message says, done.
    resolved = edited(line_5="'five'", line_39="'moved'", line_40="'forty'")
    project.core_file().write_bytes(resolved)
    project.git("add", "--all")
    project.git("am", "--continue")
    assert "has commits that are not in the series" in project.bad(2, "apply")
    assert "0002-Python-Change-the-fortieth-line.patch" in project.good("export").out
    assert "nothing to do, 2 patches" in project.good("apply").out
    assert project.core_file().read_bytes() == resolved


def test_an_interrupted_am_can_be_given_up(project: Project) -> None:
    project.series(FIRST)
    project.good("apply")
    project.series(FIRST, Change("Python: Clash", {AGENTS: edited(line_5="0")}), on={AGENTS: edited(line_4="0")})
    project.bad(1, "apply")
    project.git("am", "--abort")
    project.series(FIRST)
    assert "1 patch applied" in project.good("apply").out


def test_an_unfinished_rebase_is_left_alone(project: Project) -> None:
    project.series(FIRST, SECOND)
    project.good("apply")
    project.git("rebase", "--quiet", "--interactive", "HEAD~2", GIT_SEQUENCE_EDITOR="sed -i 1s/pick/edit/")
    message = project.bad(2, "apply")
    assert "a `git rebase` is not finished in build/checkouts/1.0.0" in message
    assert "git -C build/checkouts/1.0.0 rebase --continue" in message


def test_ctrl_c_in_am_leaves_a_clean_checkout(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.series(FIRST)
    project.good("apply")
    project.series(FIRST, SECOND)
    run = apply_module.Git.run

    def interrupted(git: apply_module.Git, *arguments: str | Path, **options: object) -> object:
        if arguments[:2] == ("am", "--quiet"):
            run(git, *arguments[:-1], os.devnull, check=False)
            raise KeyboardInterrupt
        return run(git, *arguments, **options)  # pyright: ignore[reportArgumentType] - passed on

    monkeypatch.setattr(apply_module.Git, "run", interrupted)
    assert project.run("apply").code == 130
    monkeypatch.undo()
    assert "2 patches applied" in project.good("apply").out


def test_leftovers_of_a_killed_command_go_away(project: Project) -> None:
    left = project.layout.checkouts / ".new-killed"
    left.mkdir(parents=True)
    project.good("apply")
    assert not left.exists()
    assert sorted(path.name for path in project.layout.checkouts.iterdir()) == [".lock", "1.0.0"]
