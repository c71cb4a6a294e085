"""`make apply UPSTREAM=`: the same patches on a commit of upstream's own repository.

The commit is fetched into a repository under `build/`, so that the original is only ever read. Its core source is held
against the pinned archive first: a clone that differs from what was released explains a patch that does not apply.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from patchset import console, fetch
from patchset.base import BASE_REF, init_repository, read_archive
from patchset.checkout import SERIES_REF, Checkout, apply_series, guard, new_folder, one_at_a_time, put
from patchset.errors import USAGE, PatchsetError
from patchset.options import count
from patchset.paths import CORE, Layout
from patchset.proc import Git, tail
from patchset.releases import Release, Releases
from patchset.series import series_digest, series_paths

STEP = "apply"

_URL = re.compile(r"^([a-z+]+://|[^/]+:)")
_VERSION = re.compile(r'^version = "([^"]+)"$', re.MULTILINE)


@dataclass(frozen=True)
class Difference:
    """How the core source of a commit differs from a release's archive."""

    equal: int
    line_ends: list[str]
    edited: list[str]
    missing: list[str]
    added: list[str]

    def lines(self) -> list[str]:
        """Return it as text, one kind a line."""
        kinds = {
            "differ in line endings only": self.line_ends,
            "edited": self.edited,
            "missing": self.missing,
            "not in the archive": self.added,
        }
        return [f"{self.equal} files equal", *(f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names)]


def compare(git: Git, commit: str, archive: Path, release: Release) -> Difference:
    """Hold the core source of a commit against the archive of a release."""
    published = {
        str(name): content for name, (content, _) in read_archive(archive, fetch.core_archive(release)).items()
    }
    here = _core_files(git, commit)
    common = [name for name in published if name in here]
    differing = [name for name in common if here[name] != published[name]]
    line_ends = [name for name in differing if _lf(here[name]) == _lf(published[name])]
    return Difference(
        equal=len(common) - len(differing),
        line_ends=line_ends,
        edited=[name for name in differing if name not in line_ends],
        missing=[name for name in published if name not in here],
        added=[name for name in here if name.startswith("agent_framework/") and name not in published],
    )


def _lf(content: bytes) -> bytes:
    return content.replace(b"\r\n", b"\n")


def _core_files(git: Git, commit: str) -> dict[str, bytes]:
    """Return the files of core in a commit, by their path below the package's folder."""
    listed = git.run("ls-tree", "-r", "-z", f"{commit}:{CORE.as_posix()}").stdout.decode("utf-8", "surrogateescape")
    names: list[tuple[str, str]] = []
    for entry in listed.rstrip("\0").split("\0"):
        described, _, name = entry.partition("\t")
        mode, _, blob = described.split()
        if mode.startswith("100"):
            names.append((name, blob))
    packed = git.run("cat-file", "--batch", input="".join(f"{blob}\n" for _, blob in names).encode()).stdout
    files: dict[str, bytes] = {}
    start = 0
    for name, _ in names:
        end = packed.index(b"\n", start)
        size = int(packed[start:end].split()[2])
        files[name] = packed[end + 1 : end + 1 + size]
        start = end + size + 2
    return files


def apply_to(layout: Layout, releases: Releases, upstream: str, ref: str, base: str) -> None:
    """Apply the patches of a line to a commit of upstream's repository.

    Args:
        layout: Where things are.
        releases: The table of releases.
        upstream: The address or folder of a repository.
        ref: A tag, branch or commit of it; its HEAD when empty.
        base: The release whose line is applied and whose archive is compared with; the one that the commit's core
            says it is when empty.

    Raises:
        PatchsetError: The commit cannot be had, is of no served release, or a patch does not apply; or the checkout
            holds somebody's work.
    """
    source = _source(upstream)
    name = re.sub(r"[^A-Za-z0-9.]+", "-", f"upstream {ref}").strip("-.")
    given = {"UPSTREAM": upstream, "REF": ref, "BASE": base}
    arguments = " ".join(f"{key}={shlex.quote(value)}" for key, value in given.items() if value)
    checkout = Checkout(layout, layout.checkout(name), ref or "the HEAD of the clone", arguments, None)
    with one_at_a_time(layout):
        if checkout.path.exists():
            git = checkout.git()
            guard(checkout, git)
            _apply(checkout, git, releases, source, ref, base)
            return
        with new_folder(layout) as folder:
            init_repository(folder)
            git = Git(folder, step=STEP)
            try:
                _apply(checkout, git, releases, source, ref, base)
            except PatchsetError:
                # Stopped at a patch: the checkout is where that is put right.
                if (folder / ".git" / "rebase-apply").exists():
                    put(folder, checkout.path)
                raise
            put(folder, checkout.path)


def _source(upstream: str) -> str:
    folder = Path(upstream).expanduser()
    if folder.is_dir():
        return str(folder.resolve())
    if _URL.match(upstream):
        return upstream
    raise PatchsetError(
        STEP, f"there is no folder {upstream}", next="give a folder or an address as UPSTREAM=", exit_code=USAGE
    )


def _apply(checkout: Checkout, git: Git, releases: Releases, source: str, ref: str, base: str) -> None:
    commit = _fetch(git, source, ref)
    release = _release(git, releases, commit, base)
    archives = fetch.fetch(checkout.layout, release)
    paths = series_paths(checkout.layout, release.served_line)
    wanted = {"base": commit, "series": series_digest(paths), "version": release.version}
    has = {key: git.read("config", f"patchset.{key}") for key in wanted}
    # In a new repository there is no commit yet, and no series either.
    fresh = has == wanted and git("rev-parse", "HEAD") == git.read("rev-parse", SERIES_REF)
    console.say(f"{checkout.title}: core source of {commit[:12]} against the archive of {release.version}:")
    for line in compare(git, commit, archives.core, release).lines():
        console.say(f"  {line}")
    if not fresh:
        git("update-ref", BASE_REF, commit)
        for key in ("base", "version"):
            git("config", f"patchset.{key}", wanted[key])
        apply_series(checkout, git, paths)
    what = f"{count(len(paths), 'patch')} {'already ' if fresh else ''}applied"
    console.say(
        f"{checkout.title}: {'nothing to do, ' if fresh else ''}{what} "
        f"({checkout.shown} at {git('rev-parse', 'HEAD')[:12]})"
    )


def _fetch(git: Git, source: str, ref: str) -> str:
    with console.step(f"fetch {ref or 'HEAD'} of {source}"):
        done = git.run("fetch", "--quiet", "--no-tags", "--depth=1", "--", source, ref or "HEAD", check=False)
    if done.returncode:
        raise PatchsetError(
            STEP,
            f"{ref or 'HEAD'} of {source} cannot be fetched",
            output=tail(done.stderr.decode("utf-8", "replace"), 6),
            next="check UPSTREAM= (a folder or an address) and REF= (a tag, a branch or a whole commit id)",
            exit_code=USAGE,
        )
    return git("rev-parse", "FETCH_HEAD^{commit}")


def _release(git: Git, releases: Releases, commit: str, base: str) -> Release:
    settings = git.read("show", f"{commit}:{CORE.as_posix()}/pyproject.toml")
    version = _VERSION.search(settings) if settings else None
    if version is None:
        raise PatchsetError(
            STEP,
            f"{commit[:12]} has no {CORE.as_posix()}/pyproject.toml with a version: it is no commit of agent-framework",
            exit_code=USAGE,
        )
    if base:
        return releases.get(base)
    found = releases.find(version[1])
    if found is None or found.line is None:
        served = ", ".join(row.version for row in releases.served)
        raise PatchsetError(
            STEP,
            f"{commit[:12]} has core {version[1]}, which is not served",
            where="patches/releases.toml",
            state=f"served: {served}",
            next="say whose patches to try: BASE=<one of them>",
            exit_code=USAGE,
        )
    return found
