"""Make a release's checkout: a git repository in upstream's layout, of one commit that is the same on every machine."""

from __future__ import annotations

import hashlib
import os
import tarfile
from pathlib import Path, PurePosixPath

from patchset import console
from patchset.errors import PatchsetError
from patchset.fetch import Archive, Archives, core_archive, workspace_archive
from patchset.paths import CORE, Layout
from patchset.proc import Git
from patchset.releases import Release

STEP = "base"
BASE_REF = "refs/patchset/base"
BRANCH = "patched"

_FORMAT = 1  # of the base commit; raised when the same archives shall give another commit
_EXCLUDE = """\
# The archives carry no .gitignore; this is what tools leave behind.
__pycache__/
*.py[cod]
*.egg-info/
.coverage*
.hypothesis/
.mypy_cache/
.pytest_cache/
.ruff_cache/
.venv/
build/
dist/
# What `git apply --reject` leaves behind.
*.rej
*.orig
"""


def base_digest(release: Release) -> str:
    """Return what a base commit is made from, as one digest."""
    source = f"{_FORMAT}\n{release.version}\n{release.core_sha256}\n{release.workspace_sha256}\n"
    return hashlib.sha256(source.encode()).hexdigest()


def init_repository(target: Path) -> Git:
    """Make an empty repository whose files are stored and checked out byte for byte, and return git in it."""
    git = Git(target, step=STEP)
    git("init", "--quiet", "--template=", "--object-format=sha1", "--initial-branch", BRANCH)
    info = target / ".git" / "info"
    info.mkdir()
    (info / "attributes").write_text("* -text\n", encoding="utf-8")
    (info / "exclude").write_text(_EXCLUDE, encoding="utf-8")
    return git


def make_base(layout: Layout, release: Release, archives: Archives, target: Path) -> str:
    """Make the base checkout of `release` in the empty folder `target`.

    Args:
        layout: Where things are.
        release: The release.
        archives: Its checked archives.
        target: The folder to fill.

    Returns:
        The id of the base commit.

    Raises:
        PatchsetError: An archive is not what an upstream archive looks like.
    """
    with console.step(f"{release.version}: make the base checkout"):
        git = init_repository(target)
        _extract(archives.workspace, workspace_archive(release), target / "python")
        _extract(archives.core, core_archive(release), target / CORE)
        git("add", "--all", "--force", ".")
        git("commit", "--quiet", "--message", f"agent-framework {release.version}, from its source archives")
        commit = git("rev-parse", "HEAD")
        git("update-ref", BASE_REF, commit)
        git("config", "patchset.base", base_digest(release))
        git("config", "patchset.version", release.version)
    return commit


def read_archive(path: Path, archive: Archive) -> dict[PurePosixPath, tuple[bytes, bool]]:
    """Return the files of a source archive, by their path below its top folder, each with its executable bit.

    Build metadata (`PKG-INFO`) is left out: it is not part of upstream's repository.

    Raises:
        PatchsetError: It is no archive, or has a member that a source archive of upstream does not have: one outside
            of its top folder, a link, a device.
    """

    def refuse(what: str) -> PatchsetError:
        return PatchsetError(STEP, f"{archive.filename} {what}", where=str(path))

    files: dict[PurePosixPath, tuple[bytes, bool]] = {}
    try:
        with tarfile.open(path, "r:gz") as opened:
            for member in opened:
                if member.isdir():
                    continue
                top, *below = PurePosixPath(member.name).parts
                content = opened.extractfile(member) if member.isreg() else None
                if content is None or top != archive.stem or not below or ".." in below or ".git" in below:
                    raise refuse(f"has a member that does not belong there: {member.name}")
                files[PurePosixPath(*below)] = (content.read(), bool(member.mode & 0o100))
    except (tarfile.TarError, EOFError, OSError) as error:
        raise refuse(f"cannot be unpacked: {error}") from error
    files.pop(PurePosixPath("PKG-INFO"), None)
    return files


def _extract(path: Path, archive: Archive, target: Path) -> None:
    for name, (content, executable) in read_archive(path, archive).items():
        file = target / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        os.chmod(file, 0o755 if executable else 0o644)  # noqa: PTH101 - a mode, whatever the umask
