"""What apply, export and a clone of upstream have in common: one writer at a time, nobody's work lost, `git am`.

A checkout stands on the branch `patched`, on the commit of its base or on the tip of its series. Anything else is
somebody's work, and is left alone.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from patchset import console
from patchset.base import BASE_REF, BRANCH
from patchset.diagnose import diagnose
from patchset.errors import USAGE, PatchsetError
from patchset.options import count
from patchset.paths import Layout
from patchset.proc import Git, tail
from patchset.series import load_patch, series_digest

STEP = "apply"
SERIES_REF = "refs/patchset/series"
AM = ("am", "--quiet", "--keep", "--keep-cr", "--no-3way", "--no-scissors", "--patch-format=mbox")
"""How patches are applied: subjects and line ends kept, no fuzz, no merge."""


@dataclass(frozen=True)
class Checkout:
    """A checkout and what messages say about it."""

    layout: Layout
    path: Path
    title: str
    """What the patches are applied to, as `1.14.0`."""
    arguments: str
    """What a person types after `make apply` to get it, as `BASE=1.14.0`."""
    export: str | None
    """The command that writes commits back as patches, where there is one."""
    written_on: str | None = None
    """The release that the series is written on, when that is another one."""

    @property
    def shown(self) -> str:
        return self.layout.show(self.path)

    def git(self, step: str = STEP) -> Git:
        """Return git in the checkout."""
        return Git(self.path, step=step)


@contextmanager
def one_at_a_time(layout: Layout) -> Generator[None]:
    """Let no other command write to the checkouts meanwhile; wait for one that does."""
    layout.checkouts.mkdir(parents=True, exist_ok=True)
    with (layout.checkouts / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with console.step("wait for another command that writes to the checkouts"):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def new_folder(layout: Layout) -> Generator[Path]:
    """Give a folder to make a checkout in, next to where it will be renamed to; what is left of it goes away.

    To be used by one command at a time: whatever an interrupted one left behind goes away, too.
    """
    for left in layout.checkouts.glob(".new-*"):
        shutil.rmtree(left)
    folder = Path(tempfile.mkdtemp(prefix=".new-", dir=layout.checkouts))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def put(folder: Path, target: Path) -> None:
    """Rename a finished checkout to its place; one that is there, known to hold nobody's work, makes room."""
    if target.exists():
        old = folder.with_name(folder.name + "-old")
        target.rename(old)
        folder.rename(target)
        shutil.rmtree(old)
    else:
        folder.rename(target)


def guard_progress(checkout: Checkout, git: Git) -> None:
    """Refuse a checkout in which git is in the middle of something.

    Raises:
        PatchsetError: A `git am`, a rebase or a merge is not finished.
    """
    dot_git = checkout.path / ".git"
    am = dot_git / "rebase-apply"
    if (am / "applying").exists():
        number, total = (int((am / name).read_text()) for name in ("next", "last"))
        patch = load_patch(am / f"{number:04}", number, total)
        raise PatchsetError(
            git.step,
            f"a `git am` stopped or was interrupted in {checkout.shown}, at patch {number} of {total}: {patch.subject}",
            where=checkout.shown,
            why=patch.why,
            state="left alone; what is staged or edited there is kept",
            next=resume_advice(checkout),
            exit_code=USAGE,
        )
    for marker, command in (("rebase-merge", "rebase"), ("rebase-apply", "rebase"), ("MERGE_HEAD", "merge")):
        if (dot_git / marker).exists():
            raise PatchsetError(
                git.step,
                f"a `git {command}` is not finished in {checkout.shown}",
                where=checkout.shown,
                next=f"git -C {checkout.shown} {command} --continue\n"
                f"or give it up: git -C {checkout.shown} {command} --abort",
                exit_code=USAGE,
            )


def resume_advice(checkout: Checkout) -> str:
    """Return how to go on after a `git am` that stopped, and how to give up."""
    git = f"git -C {checkout.shown}"
    lines = [
        f"{git} am --show-current-patch=diff | {git} apply --reject  # applies what fits, the rest goes to *.rej",
        f"edit what is left, then: {git} add --all && {git} am --continue",
    ]
    if checkout.export:
        lines.append(f"then keep it: {checkout.export}")
    elif checkout.written_on:
        other = checkout.written_on
        lines.append(f"then mend the series where it is written, so that it applies to both: make apply BASE={other}")
    return "\n".join([*lines, f"or give up: {git} am --abort && make apply {checkout.arguments}"])


def guard_clean(checkout: Checkout, git: Git) -> None:
    """Refuse a checkout with uncommitted changes.

    Raises:
        PatchsetError: Something is modified, staged or new in it.
    """
    changed = git("status", "--porcelain", "--untracked-files=all").splitlines()
    if not changed:
        return
    shown = changed[:10] + ([f"... and {len(changed) - 10} more"] if len(changed) > 10 else [])
    where = checkout.shown
    keep = f"git -C {where} add --all && git -C {where} commit, then: "
    keep += checkout.export or f"make apply {checkout.arguments}, which says how to go on"
    raise PatchsetError(
        git.step,
        f"{where} has uncommitted changes; it is left alone",
        where=where,
        output="\n".join(shown),
        next=f"keep them: {keep}\n"
        f"or put them aside: git -C {where} stash --include-untracked, then: make apply {checkout.arguments}",
        exit_code=USAGE,
    )


def guard_branch(checkout: Checkout, git: Git) -> None:
    """Refuse a checkout that is on another branch.

    Raises:
        PatchsetError: It is.
    """
    where = checkout.shown
    branch = git.read("symbolic-ref", "--quiet", "--short", "HEAD")
    if branch != BRANCH:
        raise PatchsetError(
            git.step,
            f"{where} is {f'on the branch {branch}' if branch else 'on no branch'}, not on {BRANCH}; it is left alone",
            where=where,
            next=f"git -C {where} checkout {BRANCH}, then the same command again",
            exit_code=USAGE,
        )


def guard_commits(checkout: Checkout, git: Git) -> None:
    """Refuse a checkout that stands anywhere but on its base or on the tip of its series.

    Raises:
        PatchsetError: It has commits that the series does not have, or lacks some.
    """
    where = checkout.shown
    head = git("rev-parse", "HEAD")
    refs = (git.read("rev-parse", "--verify", "--quiet", ref) for ref in (BASE_REF, SERIES_REF))
    known = [commit for commit in refs if commit]
    if head in known:
        return
    commits = git("log", "--oneline", "--max-count=10", f"{known[-1]}..HEAD") if known else ""
    back = f"git -C {where} reset --hard {SERIES_REF if len(known) > 1 else BASE_REF}"
    then = f"{back}, then: make apply {checkout.arguments}"
    if checkout.export:
        keep = f"keep them as patches: {checkout.export}"
    else:
        keep = f"keep them on a branch: git -C {where} branch mine && {then}"
    raise PatchsetError(
        git.step,
        f"{where} has commits that are not in the series; it is left alone",
        where=where,
        output=commits or f"HEAD is at {head[:12]}, before the tip of the series",
        next=f"{keep}\nor drop them: {then}",
        exit_code=USAGE,
    )


def guard(checkout: Checkout, git: Git) -> None:
    """Refuse a checkout that holds somebody's work.

    Raises:
        PatchsetError: It does; the message says what and how to keep it.
    """
    guard_progress(checkout, git)
    guard_branch(checkout, git)
    guard_commits(checkout, git)
    guard_clean(checkout, git)


def removal_advice(checkout: Checkout) -> str:
    """Return how to get a checkout with somebody's work out of the way, whatever kind of checkout and of work it is."""
    where = checkout.shown
    return (
        f"keep it: mv {where} ../{checkout.path.name}.kept, then the same command again\n"
        f"or drop it: rm -rf {where}, then the same command again"
    )


def guard_other_work(checkout: Checkout, git: Git) -> None:
    """Refuse to remove a checkout with a stash, or a branch of somebody's own.

    Raises:
        PatchsetError: It has one.
    """
    refs = git("for-each-ref", "--format=%(refname:short)", "refs/stash", "refs/heads").splitlines()
    if kept := [name for name in refs if name != BRANCH]:
        where = checkout.shown
        raise PatchsetError(
            git.step,
            f"{where} has work that would be lost: {', '.join(kept)}",
            where=where,
            next=removal_advice(checkout),
            exit_code=USAGE,
        )


def apply_series(checkout: Checkout, git: Git, paths: list[Path]) -> str:
    """Apply patch files to the base of a clean checkout and remember them as its series.

    Args:
        checkout: The checkout that messages name.
        git: Git in it; it may be still in the folder that it is made in.
        paths: The patch files.

    Returns:
        The id of the last commit.

    Raises:
        PatchsetError: A patch does not apply; the checkout is left in the middle of `git am`, at that patch.
    """
    git("checkout", "--quiet", "-B", BRANCH, BASE_REF)
    # From here on the checkout is about these files; whether they are applied is said by the ref.
    git("update-ref", "-d", SERIES_REF)
    git("config", "patchset.series", series_digest(paths))
    if paths:
        with console.step(f"{checkout.title}: apply {count(len(paths), 'patch')}"):
            _am(checkout, git, paths)
    commit = git("rev-parse", "HEAD")
    git("update-ref", SERIES_REF, commit)
    return commit


def _am(checkout: Checkout, git: Git, paths: list[Path]) -> None:
    try:
        done = git.run(*AM, *paths, check=False)
    except KeyboardInterrupt:
        # The checkout was clean: back to its base loses nothing.
        git.run("am", "--abort", check=False)
        raise
    if done.returncode == 0:
        return
    state = git.checkout / ".git" / "rebase-apply"
    if not (state / "next").exists():
        raise PatchsetError(
            git.step,
            "git am could not start",
            output=tail(done.stderr.decode("utf-8", "replace")),
            where=checkout.shown,
        )
    number = int((state / "next").read_text())
    patch = load_patch(paths[number - 1], number, len(paths))
    found = diagnose(git, patch, checkout.title)
    advice = resume_advice(checkout)
    if found.needless:
        advice = f"if upstream has it now: git rm {checkout.layout.show(patch.path)}, and give up as below\n{advice}"
    raise PatchsetError(
        git.step,
        f"{patch.name} does not apply to {checkout.title}",
        where=found.where,
        why=patch.why,
        state=found.state,
        next=advice,
        output=None if found.understood else tail(done.stderr.decode("utf-8", "replace")),
    )
