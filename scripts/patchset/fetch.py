"""Get the source archives of a release by the ordinary client, check them, and keep them.

An archive in the cache is checked whenever it is used, so a second run needs no network; one that is not what the table
says is never used, and a download reaches the cache only when it is complete and right.
"""

from __future__ import annotations

import hashlib
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from patchset import console
from patchset.errors import USAGE, PatchsetError
from patchset.indexes import pip_env
from patchset.paths import Layout
from patchset.proc import run, tail
from patchset.releases import Release

STEP = "fetch"

_VERSIONS = re.compile(r"\(from versions: ([^)]+)\)")
_SHOWN = 5


@dataclass(frozen=True)
class Archive:
    """A source archive as published."""

    project: str
    version: str
    sha256: str
    size: int

    @property
    def stem(self) -> str:
        """The name of the archive's only top folder."""
        return f"{self.project.replace('-', '_')}-{self.version}"

    @property
    def filename(self) -> str:
        return f"{self.stem}.tar.gz"

    def mismatch(self, path: Path) -> str | None:
        """Return how the file `path` differs from the published archive, or None when it does not."""
        size = path.stat().st_size
        if size != self.size:
            kind = "truncated" if size < self.size else "too long"
            return f"{kind}: {size:,} bytes, {self.size:,} were published"
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return None if digest == self.sha256 else f"wrong hash: sha256 {digest}, {self.sha256} was published"


@dataclass(frozen=True)
class Archives:
    """The checked archives of a release, in the cache."""

    core: Path
    workspace: Path


def core_archive(release: Release) -> Archive:
    """Return the archive of the core package."""
    return Archive("agent-framework-core", release.version, release.core_sha256, release.core_size)


def workspace_archive(release: Release) -> Archive:
    """Return the archive with the root of upstream's workspace, up to 1.14.0 all of it."""
    return Archive("agent-framework", release.version, release.workspace_sha256, release.workspace_size)


def fetch(layout: Layout, release: Release) -> Archives:
    """Return the archives of `release`, downloaded when the cache does not have them.

    Raises:
        PatchsetError: An archive cannot be had, or is not the published one.
    """
    return Archives(fetch_archive(layout, core_archive(release)), fetch_archive(layout, workspace_archive(release)))


def measure(layout: Layout, project: str, version: str) -> Archive:
    """Return what an archive is that no table has, downloaded when the cache does not have it.

    The client checks it against what the package index says of it; nobody else has seen it yet.

    Raises:
        PatchsetError: The archive cannot be had.
    """
    unknown = Archive(project, version, sha256="", size=0)
    cached = layout.cache / unknown.filename
    if not cached.exists():
        layout.cache.mkdir(parents=True, exist_ok=True)
        with (
            console.step(f"{version}: download {unknown.filename}, of which nothing is known yet"),
            tempfile.TemporaryDirectory(prefix=".download-", dir=layout.cache) as folder,
        ):
            _download(layout, unknown, Path(folder))
            (Path(folder) / unknown.filename).replace(cached)
    content = cached.read_bytes()
    return Archive(project, version, hashlib.sha256(content).hexdigest(), len(content))


def fetch_archive(layout: Layout, archive: Archive) -> Path:
    """Return the path of one checked archive, downloaded when the cache does not have it.

    Raises:
        PatchsetError: The archive cannot be had, or is not the published one.
    """
    cached = layout.cache / archive.filename
    if cached.exists():
        if wrong := archive.mismatch(cached):
            raise PatchsetError(
                STEP,
                f"{archive.filename} in the cache is not the published archive",
                where=layout.show(cached),
                state=wrong,
                next=f"rm {layout.show(cached)} and run the command again; it is downloaded anew",
            )
        return cached
    layout.cache.mkdir(parents=True, exist_ok=True)
    with (
        console.step(f"{archive.version}: download {archive.filename} ({archive.size / 1e6:.1f} MB)"),
        tempfile.TemporaryDirectory(prefix=".download-", dir=layout.cache) as folder,
    ):
        _download(layout, archive, Path(folder))
        downloaded = Path(folder) / archive.filename
        if wrong := archive.mismatch(downloaded):
            raise _not_published(layout, archive, wrong)
        downloaded.replace(cached)
    return cached


def _not_published(layout: Layout, archive: Archive, wrong: str) -> PatchsetError:
    return PatchsetError(
        STEP,
        f"the package index gave another {archive.filename} than the published one",
        where=layout.show(layout.releases_toml),
        state=wrong,
        next="check pip's index settings (pip config list): a mirror may be stale or rebuilt; nothing was kept",
    )


def _no_such_release(archive: Archive, printed: str) -> PatchsetError:
    """Return what a person is told who asked for a release that is not published, as far as the index says."""
    listed = _VERSIONS.search(printed)
    versions = listed[1].split(", ") if listed and listed[1] != "none" else []
    newest = versions[-_SHOWN:][::-1]
    return PatchsetError(
        STEP,
        f"the package index has no source of {archive.project} {archive.version}",
        state=f"the newest that it has: {', '.join(newest)}" if newest else f"it has none of {archive.project} at all",
        next=f"give a release that there is as BASE=, as in: make try BASE={newest[0]}"
        if newest
        else "check pip's index settings (pip config list)",
        exit_code=USAGE,
    )


def _download(layout: Layout, archive: Archive, folder: Path) -> None:
    requirement = folder / "requirement.txt"
    pinned = f" --hash=sha256:{archive.sha256}" if archive.sha256 else ""
    requirement.write_text(f"{archive.project}=={archive.version}{pinned}\n", encoding="utf-8")
    python = Path(sys.executable)
    env = pip_env(python)
    env.setdefault("PIP_RETRIES", "2")
    # No build isolation: the tools have the build backend, and isolation would download one without a hash.
    options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
    options += ["--require-hashes"] if pinned else []
    done = run(
        [python, "-m", "pip", "-vv", "download", *options, "--dest", folder, "--requirement", requirement],
        step=STEP,
        what=f"{archive.filename} could not be downloaded",
        cwd=folder,
        env=env,
        check=False,
    )
    printed = (done.stdout + done.stderr).decode("utf-8", "replace")
    if done.returncode == 0:
        return
    if "DO NOT MATCH THE HASHES" in printed:
        got = [line.split()[-1] for line in printed.splitlines() if line.split()[:1] == ["Got"]][-1:]
        raise _not_published(
            layout, archive, f"wrong hash: sha256 {' '.join(got)}, {archive.sha256} was published; perhaps truncated"
        )
    lines = [line.strip() for line in printed.splitlines() if "404 Client Error" not in line]
    signs = ("Could not fetch URL", "Retrying (", "Connection", "IncompleteRead", "timed out")
    unreachable = any(sign in line for line in lines for sign in signs)
    said = [line for line in lines if line.startswith(("ERROR: ", "WARNING: ", "Could not fetch URL"))]
    if not unreachable and not pinned and "No matching distribution found" in printed:
        raise _no_such_release(archive, printed)
    raise PatchsetError(
        STEP,
        f"{archive.filename} could not be downloaded: "
        + ("no network, or the package index is out of reach" if unreachable else "the package index does not have it"),
        output=tail("\n".join(said) or printed, 6),
        next="check the network and pip's index settings (pip config list), then run the command again; or put the "
        f"archive into {layout.show(layout.cache)}/ yourself",
    )
