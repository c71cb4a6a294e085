"""Find out why a patch does not apply: which hunks of which files, and whether they are there already."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from unidiff.patch import PatchedFile

from patchset.errors import PatchsetError
from patchset.proc import Git
from patchset.series import Patch

_APPLYING = re.compile(r"^Applying patch (.+) with \d+ rejects?\.\.\.$")
_REJECTED = re.compile(r"^Rejected hunk #(\d+)\.$")
_FILE_ERROR = re.compile(r"^error: (.+): ([A-Za-z][^:]*)$")


@dataclass(frozen=True)
class Diagnosis:
    """What does not apply."""

    where: str
    """The places, one a line."""
    state: str
    """What is known of the cause."""
    needless: bool = False
    """Whether every change of the patch is there already."""
    understood: bool = True
    """Whether the places explain the failure."""


@contextmanager
def worktree(git: Git, commit: str) -> Generator[Git]:
    """Give git in a disposable worktree of `commit`."""
    with tempfile.TemporaryDirectory(prefix="patchset-") as folder:
        path = Path(folder) / "worktree"
        git("worktree", "add", "--quiet", "--detach", path, commit)
        try:
            yield Git(path, step=git.step)
        finally:
            git.run("worktree", "remove", "--force", path, check=False)


def diagnose(git: Git, patch: Patch, title: str) -> Diagnosis:
    """Say why `patch` does not apply to the commit that the checkout stands on.

    Args:
        git: Git in the checkout.
        patch: The patch.
        title: What the patches are applied to, for messages.

    Returns:
        The places that do not fit and the likely cause.
    """
    try:
        files = {file.path: file for file in patch.files()}
    except PatchsetError as error:
        return Diagnosis(str(patch.path), error.what, understood=False)
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        git.run("read-tree", "HEAD", env=index)

        def present(diff: bytes) -> bool:
            reverse = ("apply", "--cached", "--reverse", "--check", "-")
            return git.run(*reverse, check=False, input=diff, env=index).returncode == 0

        if present(patch.diff):
            removal = "".join(f"; to be removed when {when}" for when in patch.trailer("Remove-When"))
            state = f"it looks already applied: {title} has every change of it{removal}"
            return Diagnosis("\n".join(files), state, needless=True)
        with worktree(git, "HEAD") as scratch:
            done = scratch.run("apply", "--reject", "--verbose", "-", check=False, input=patch.diff)
        places: list[str] = []
        there = 0
        applying = ""
        printed = done.stderr.decode("utf-8", "surrogateescape").splitlines()
        for line in printed:
            if found := _APPLYING.match(line):
                applying = found[1].rpartition(" => ")[2]
            elif (found := _REJECTED.match(line)) and applying in files:
                file, number = files[applying], int(found[1])
                already = present(_lone(file, number))
                there += already
                places.append(_place(file, number) + (", already there" if already else ""))
            elif (found := _FILE_ERROR.match(line)) and found[2] != "patch does not apply":
                places.append(f"{found[1]}: {found[2]}")
    if not places:
        return Diagnosis(str(patch.path), "git apply says otherwise than git am", understood=False)
    if there == len(places):
        state = f"it looks already applied: {title} has every change that does not fit"
    elif there:
        state = f"{there} of {len(places)} places look already applied, the rest of {title} reads differently there"
    else:
        state = f"not applied yet; {title} reads differently there"
    if crlf := [path for path in files if _other_line_ends(git, path, patch.diff)]:
        state += f"\nline endings differ (CRLF against LF): {', '.join(crlf)}"
    return Diagnosis("\n".join(places), state)


def _place(file: PatchedFile, number: int) -> str:
    """Return how messages call one hunk."""
    hunk = file[number - 1]
    heading = f"@@ -{hunk.source_start},{hunk.source_length} +{hunk.target_start},{hunk.target_length} @@"
    within = f"{heading} {hunk.section_header}".rstrip()
    return f"{file.path}:{hunk.source_start}, hunk {number} of {len(file)} ({within})"


def _lone(file: PatchedFile, number: int) -> bytes:
    """Return one hunk as a diff."""
    return f"--- {file.source_file}\n+++ {file.target_file}\n{file[number - 1]}".encode("utf-8", "surrogateescape")


def _other_line_ends(git: Git, path: str, diff: bytes) -> bool:
    """Return whether a file and a diff have different line ends."""
    blob = git.run("cat-file", "blob", f"HEAD:{path}", check=False)
    return blob.returncode == 0 and (b"\r\n" in blob.stdout) != (b"\r\n" in diff)
