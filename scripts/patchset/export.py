"""`make export`: write the commits of a checkout back as patch files, in the one form whose inverse is apply.

The commits are first made again the way apply makes them (the project as author and committer, a fixed date for the
committer, a message without stray blanks), so that the files depend on trees and messages alone; then the files are
applied to the base once more, and have to give the very same commits.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import click

from patchset import console
from patchset.apply import checkout_of
from patchset.base import BASE_REF, BRANCH, base_digest
from patchset.checkout import AM, SERIES_REF, Checkout, guard_branch, guard_clean, guard_progress, one_at_a_time
from patchset.diagnose import worktree
from patchset.errors import USAGE, PatchsetError
from patchset.options import base_option, count, for_each, pass_layout
from patchset.paths import Layout
from patchset.proc import AUTHOR_EMAIL, AUTHOR_NAME, Git, tail
from patchset.releases import Release, Releases, load
from patchset.series import series_digest, series_paths

STEP = "export"

_DIFF = (
    "--patch",
    "--no-commit-id",
    "--full-index",
    "--binary",
    "--unified=3",
    "--find-renames",
    "--diff-algorithm=myers",
    "--indent-heuristic",
    "--no-ext-diff",
    "--no-textconv",
    "--src-prefix=a/",
    "--dst-prefix=b/",
)
_SLUG = 52
"""How much of a subject goes into a file name, as `git format-patch` has it."""


@dataclass(frozen=True)
class ExportResult:
    """What an export changed in the folder of a line."""

    line: str
    patches: int
    new: list[str]
    changed: list[str]
    removed: list[str]


def canonical(git: Git, base: str, tip: str, *, shown: str) -> str:
    """Make the commits after `base` again as apply makes them.

    Args:
        git: Git in the checkout.
        base: The commit of the base.
        tip: The last commit.

    Keyword Args:
        shown: How messages call the checkout.

    Returns:
        The id of the last one; `tip` itself when they are as they should be.

    Raises:
        PatchsetError: They are no series: one is a merge, is empty, or has no message.
    """
    if not git.ok("merge-base", "--is-ancestor", base, tip):
        raise PatchsetError(
            git.step,
            "the base is not among the ancestors of the checkout",
            where=shown,
            next=f"git -C {shown} rebase {BASE_REF}",
            exit_code=USAGE,
        )
    parent = base
    for line in git("rev-list", "--reverse", "--topo-order", "--parents", f"{base}..{tip}").splitlines():
        commit, *parents = line.split()
        head = git("show", "--no-patch", "--encoding=UTF-8", "--date=raw", "--format=%ad%n%B", commit)
        date, _, message = head.partition("\n")
        text = git("stripspace", input=message.encode("utf-8", "surrogateescape"))
        subject, _, body = text.partition("\n\n")

        def refuse(what: str, commit: str = commit, subject: str = subject) -> PatchsetError:
            return PatchsetError(
                git.step,
                f"the commit {commit[:12]} {what}: {' '.join(subject.split())}",
                where=shown,
                next=f"git -C {shown} rebase --interactive {BASE_REF}",
                exit_code=USAGE,
            )

        if len(parents) > 1:
            raise refuse("is a merge, a series is a straight line")
        if not subject:
            raise refuse("has no message")
        tree = git("rev-parse", f"{commit}^{{tree}}")
        if tree == git("rev-parse", f"{parent}^{{tree}}"):
            raise refuse("changes nothing")
        text = " ".join(subject.split()) + (f"\n\n{body}" if body else "") + "\n"
        made = git.run(
            "commit-tree",
            tree,
            "-p",
            parent,
            input=text.encode("utf-8", "surrogateescape"),
            env={"GIT_AUTHOR_DATE": date},
        )
        parent = made.stdout.decode().strip()
    return parent


def format_series(git: Git, base: str, tip: str) -> dict[str, bytes]:
    """Return the commits after `base`, made by `canonical`, as patch files: name to contents.

    The form is that of `git format-patch --keep-subject --zero-commit --full-index --no-signature`, without a summary
    of changes but always with the line that ends the message; versions of git differ in that, and a file shall not.
    """
    files: dict[str, bytes] = {}
    for number, commit in enumerate(git("rev-list", "--reverse", "--topo-order", f"{base}..{tip}").splitlines(), 1):
        slug, date, message = git("show", "--no-patch", "--format=%f%n%aD%n%B", commit).split("\n", 2)
        subject, _, body = message.partition("\n\n")
        head = [
            f"From {'0' * 40} Mon Sep 17 00:00:00 2001",
            f"From: {AUTHOR_NAME} <{AUTHOR_EMAIL}>",
            f"Date: {date}",
            f"Subject: {subject}",
        ]
        if not message.isascii():
            head += ["MIME-Version: 1.0", "Content-Type: text/plain; charset=UTF-8", "Content-Transfer-Encoding: 8bit"]
        text = "\n".join([*head, "", *([body] if body else []), "---", "", ""]).encode("utf-8", "surrogateescape")
        name = f"{number:04}-{slug[:_SLUG].rstrip('-.')}.patch"
        files[name] = text + git.run("diff-tree", *_DIFF, commit).stdout
    return files


def applied(git: Git, base: str, files: dict[str, bytes]) -> str:
    """Return the last commit that patch files give on `base`, applied in a worktree of their own.

    Raises:
        PatchsetError: They do not apply.
    """
    with tempfile.TemporaryDirectory() as folder, worktree(git, base) as scratch:
        paths: list[Path] = []
        for name, content in files.items():
            paths.append(Path(folder) / name)
            paths[-1].write_bytes(content)
        if paths:
            done = scratch.run(*AM, *paths, check=False)
            if done.returncode:
                raise PatchsetError(
                    git.step, "the exported patches do not apply", output=tail(done.stderr.decode("utf-8", "replace"))
                )
        return scratch("rev-parse", "HEAD")


def export(layout: Layout, releases: Releases, release: Release) -> ExportResult:
    """Write the commits of the checkout of `release` as the series of its line.

    Raises:
        PatchsetError: The checkout is not ready for it, is not the one that the line is written on, or its commits
            cannot be said in patches; nothing is written then.
    """
    line = release.served_line
    reference = releases.lines()[line][-1]
    if release != reference:
        raise PatchsetError(
            STEP,
            f"the {line} line is written on {reference.version}, not on {release.version}",
            next=f"make the change in {layout.show(layout.checkout(reference.version))} and run "
            f"make export BASE={reference.version}",
            exit_code=USAGE,
        )
    checkout = checkout_of(layout, release)
    if not checkout.path.exists():
        raise PatchsetError(
            STEP,
            f"there is no checkout of {release.version} yet",
            next=f"make apply BASE={release.version}",
            exit_code=USAGE,
        )
    with one_at_a_time(layout):
        git = checkout.git(STEP)
        guard_progress(checkout, git)
        guard_branch(checkout, git)
        guard_clean(checkout, git)
        if git.read("config", "patchset.base") != base_digest(release):
            raise PatchsetError(
                STEP,
                f"{checkout.shown} was made from other archives than patches/releases.toml names",
                next=f"git -C {checkout.shown} format-patch {BASE_REF} to keep its commits, rm -r {checkout.shown} and "
                f"make apply BASE={release.version}",
                exit_code=USAGE,
            )
        base = git("rev-parse", BASE_REF)
        with console.step(f"{release.version}: write the patches and apply them once more"):
            tip = canonical(git, base, git("rev-parse", "HEAD"), shown=checkout.shown)
            files = format_series(git, base, tip)
            again = applied(git, base, files)
        if again != tip:
            raise PatchsetError(
                STEP,
                "the patches do not give the same commits when they are applied again",
                state="a message with a line that looks like the start of a diff (`---`, `diff -`, `Index:`) or of a "
                "mail (`From: `, `Date: `, `Subject: `) is cut there",
                next=f"git -C {checkout.shown} rebase --interactive {BASE_REF}, reword it, then: {checkout.export}",
            )
        _guard_folder(checkout, git, line, files)
        result = _write(layout, line, files)
        git("checkout", "--quiet", "-B", BRANCH, tip)
        git("update-ref", SERIES_REF, tip)
        git("config", "patchset.series", series_digest(series_paths(layout, line)))
    return result


def _guard_folder(checkout: Checkout, git: Git, line: str, files: dict[str, bytes]) -> None:
    """Refuse to overwrite patch files that somebody changed after they were applied.

    Raises:
        PatchsetError: They did, and the checkout does not have it.
    """
    layout = checkout.layout
    paths = series_paths(layout, line)
    if series_digest(paths) == git.read("config", "patchset.series"):
        return
    if {path.name: path.read_bytes() for path in paths} != files:
        shown = layout.show(layout.series(line))
        raise PatchsetError(
            git.step,
            f"{shown} has changed since it was applied to {checkout.shown}; nothing is written over it",
            where=shown,
            next=f"take the files as they are: make apply {checkout.arguments}, then the same command again\n"
            f"commits made meanwhile: git -C {checkout.shown} branch mine && git -C {checkout.shown} reset --hard "
            f"{SERIES_REF} first, git cherry-pick afterwards",
            exit_code=USAGE,
        )


def _write(layout: Layout, line: str, files: dict[str, bytes]) -> ExportResult:
    folder = layout.series(line)
    folder.mkdir(parents=True, exist_ok=True)
    before = {path.name: path.read_bytes() for path in series_paths(layout, line)}
    new = [name for name in files if name not in before]
    changed = [name for name in files if name in before and before[name] != files[name]]
    removed = [name for name in before if name not in files]
    for name in new + changed:
        written = folder / f".{name}"
        written.write_bytes(files[name])
        written.replace(folder / name)
    for name in removed:
        (folder / name).unlink()
    return ExportResult(line, len(files), new, changed, removed)


@click.command("export", short_help="Write the commits of a checkout back as patches.")
@base_option
@pass_layout
def command(layout: Layout, base: str) -> None:
    """Write the commits of a checkout back as patches, and check that applying them gives the same commits."""
    releases = load(layout)

    def one(release: Release) -> None:
        done = export(layout, releases, release)
        words = {"new": done.new, "changed": done.changed, "removed": done.removed}
        said = [f"{len(names)} {word} ({', '.join(names)})" for word, names in words.items() if names]
        console.say(f"patches/{done.line}: {count(done.patches, 'patch')}, {', '.join(said) or 'nothing to change'}")

    wanted = [rows[-1] for rows in releases.lines().values()] if base == "all" else releases.resolve(base)
    for_each(wanted, one)
