"""`make try`: hold a series against a release that it does not serve, patch by patch, and change nothing.

What is learned of the release (hashes, pins) is kept under `build/`, for a person to put into the table. A patch that
does not apply is gone past by a merge that lets the patch have its way, so that what is said of the next one is not
about the one before.
"""

from __future__ import annotations

import difflib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any, cast

import click
import tomlkit
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from patchset import console, fetch, releases
from patchset.base import BASE_REF, make_base, read_archive
from patchset.checkout import AM
from patchset.diagnose import Diagnosis, diagnose
from patchset.errors import FAILED, USAGE, PatchsetError
from patchset.options import count, pass_layout
from patchset.paths import Layout
from patchset.proc import Git, tail
from patchset.releases import Release, Releases
from patchset.series import Patch, load_series

STEP = "try"

_MARKER = 31  # longer than any that a source would have
_SHOWN = 12


class Fit(Enum):
    """How a patch fits a release."""

    APPLIES = "applies"
    THERE = "already there"
    MERGES = "merges"
    """It does not apply, for its surroundings read differently; a three-way merge brings it in without a question."""
    CONFLICTS = "conflicts"


@dataclass(frozen=True)
class Conflict:
    """A place where the release and the patch change the same lines of the release that the series is written on."""

    where: str
    upstream: list[str]
    """What upstream has there instead, as the lines of a diff."""

    def lines(self, limit: int | None) -> list[str]:
        """Return it as text, no more than `limit` lines of upstream's."""
        shown = self.upstream[:limit]
        left = len(self.upstream) - len(shown)
        more = [f"  ... and {count(left, 'line')} more"] if left else []
        return [self.where, *(f"  {line}" for line in shown), *more]


@dataclass(frozen=True)
class Finding:
    """What came of one patch."""

    patch: Patch
    fit: Fit
    diagnosis: Diagnosis | None = None
    conflicts: tuple[Conflict, ...] = ()

    def lines(self, limit: int | None) -> list[str]:
        """Return what is to be known of a patch that does not apply."""
        if self.diagnosis is None:
            return []
        found = [self.patch.name, f"  {self.fit.value}: {self.diagnosis.state}".replace("\n", "\n  ")]
        if self.conflicts:
            found += [f"  {line}" for conflict in self.conflicts for line in conflict.lines(limit)]
        elif self.fit is not Fit.THERE:
            found += [f"  {place}" for place in self.diagnosis.where.splitlines()]
        return found


# region the release


def known(layout: Layout, table: Releases, version: str) -> tuple[Release, str | None]:
    """Return the row of a release, and its text when the table does not have it.

    Raises:
        PatchsetError: The archives of the release cannot be had.
    """
    if row := table.find(version):
        return row, None
    path = layout.build / "try" / f"{version}.toml"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        text = _record(layout, table, version)
        draft = path.with_suffix(".draft")
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    (row,) = releases.read(layout, path)
    return row, path.read_text(encoding="utf-8")


def _record(layout: Layout, table: Releases, version: str) -> str:
    """Return the row of a release that the table does not have."""
    core, workspace = (
        fetch.measure(layout, project, version) for project in ("agent-framework-core", "agent-framework")
    )
    sources = {archive.project: read_archive(layout.cache / archive.filename, archive) for archive in (core, workspace)}
    pins = dict(pinned(sources[workspace.project]) | pinned(sources[core.project]))
    tests = PurePosixPath("packages/core/tests")
    like = min(table.rows, key=lambda row: _distance(row.version, version))
    assumed = f"  # as for {like.version}, to be tried"
    lines = ["[[release]]", f'version = "{version}"']
    for prefix, archive in (("core", core), ("workspace", workspace)):
        lines += [f'{prefix}_sha256 = "{archive.sha256}"', f"{prefix}_size = {archive.size}"]
    for tool, otherwise in (("ruff", like.ruff), ("pyright", like.pyright)):
        lines.append(f'{tool} = "{pins[tool]}"' if tool in pins else f'{tool} = "{otherwise}"{assumed}, none is pinned')
    has_suite = any(name.is_relative_to(tests) for name in sources[workspace.project])
    for key, value, remark in (
        ("suite", has_suite, ""),
        ("bug_7236", like.bug_7236, assumed),
        ("bug_8313", like.bug_8313, assumed),
    ):
        lines.append(f"{key} = {str(value).lower()}{remark}")
    return "\n".join([*lines, ""])


def _distance(one: str, other: str) -> tuple[int, ...]:
    pairs = zip((*Version(one).release, 0, 0), (*Version(other).release, 0, 0), strict=False)
    return tuple(abs(left - right) for left, right in pairs)


def pinned(source: dict[PurePosixPath, tuple[bytes, bool]]) -> dict[str, str]:
    """Return the tools that the `pyproject.toml` of a source pins for its developers, with their versions."""
    content, _ = source.get(PurePosixPath("pyproject.toml"), (b"", False))
    groups: Any = tomlkit.parse(content).unwrap().get("dependency-groups", {})
    found: dict[str, str] = {}
    for entry in (entry for group in cast("dict[str, list[Any]]", groups).values() for entry in group):
        try:
            requirement = Requirement(entry) if isinstance(entry, str) else None
        except InvalidRequirement:
            continue
        if requirement and (exact := [pin.version for pin in requirement.specifier if pin.operator == "=="]):
            found[requirement.name] = exact[0]
    return found


# endregion
# region the patches


def reference(layout: Layout, release: Release, patches: list[Patch], folder: Path) -> list[str]:
    """Apply a series to the release that it is written on, in a new folder, and return a commit for each patch.

    Raises:
        PatchsetError: It does not apply there.
    """
    make_base(layout, release, fetch.fetch(layout, release), folder)
    git = Git(folder, step=STEP)
    done = git.run(*AM, *(patch.path for patch in patches), check=False) if patches else None
    if done and done.returncode:
        raise PatchsetError(
            STEP,
            f"the series does not apply to {release.version}, which it is written on",
            output=tail(done.stderr.decode("utf-8", "replace")),
            next=f"make apply BASE={release.version}",
        )
    return git("rev-list", "--reverse", f"{BASE_REF}..HEAD").splitlines()


def hold(git: Git, patch: Patch, commit: str, title: str, written_on: str) -> Finding:
    """Apply one patch to where git stands, by a merge if need be, and say how it went.

    Args:
        git: Git in a disposable checkout, which has the commits of the reference.
        patch: The patch.
        commit: The commit of the patch in the reference.
        title: The release that it is tried on.
        written_on: The release that the series is written on.
    """
    if git.ok(*AM, patch.path):
        return Finding(patch, Fit.APPLIES)
    git.run("am", "--abort", check=False)
    found = diagnose(git, patch, title)
    if found.needless:
        return Finding(patch, Fit.THERE, found)
    changed = git("diff-tree", "-r", "--name-only", "--no-renames", f"{commit}^", commit).splitlines()
    conflicts = tuple(place for path in changed for place in merge(git, path, commit, title, written_on))
    if not git.ok("cherry-pick", "--strategy-option=theirs", "--keep-redundant-commits", commit):
        # What is left are files that one of the two has removed: the patch has its way there, too.
        for path in git("diff", "--name-only", "--diff-filter=U").splitlines():
            if not git.ok("checkout", commit, "--", path):
                git("rm", "--quiet", "--force", "--", path)
        git("commit", "--quiet", "--allow-empty", "--reuse-message", commit)
    return Finding(patch, Fit.CONFLICTS if conflicts else Fit.MERGES, found, conflicts)


def merge(git: Git, path: str, commit: str, title: str, written_on: str) -> Iterator[Conflict]:
    """Yield the places of one file where a patch and the release it is tried on do not go together."""

    def content(revision: str) -> bytes | None:
        blob = git.run("cat-file", "blob", f"{revision}:{path}", check=False)
        return blob.stdout if blob.returncode == 0 else None

    ours, base, theirs = content("HEAD"), content(f"{commit}^"), content(commit)
    if ours in {base, theirs}:
        return
    if ours is None:
        yield Conflict(f"{path}: {title} has no such file", [])
        return
    if theirs is None:
        yield Conflict(f"{path}: the patch removes it, and {title} has it otherwise than {written_on}", [])
        return
    with tempfile.TemporaryDirectory() as folder:
        names = ("ours", "base", "theirs")
        for name, text in zip(names, (ours, base or b"", theirs), strict=True):
            (Path(folder) / name).write_bytes(text)
        paths = [Path(folder) / name for name in names]
        merged = git.run("merge-file", "-p", "--diff3", f"--marker-size={_MARKER}", *paths, check=False)
    if merged.returncode > 127 or merged.returncode < 0:
        yield Conflict(f"{path}: not a text; {title} has it otherwise than {written_on}", [])
        return
    yield from _conflicts(merged.stdout.decode("utf-8", "surrogateescape"), path, title, written_on)


def _conflicts(merged: str, path: str, title: str, written_on: str) -> Iterator[Conflict]:
    """Read the places between conflict markers, with the line numbers that the release has."""
    sides: dict[str, list[str]] = {}
    side, number, start = "", 0, 0
    for line in merged.splitlines():
        mark = line[0] if line[:_MARKER] == line[:1] * _MARKER and line[:1] in "<|=>" and line else ""
        if mark == "<":
            sides = {"<": [], "|": [], "=": []}
            start = number + 1
        elif mark == ">":
            there = f"{start}-{number}" if number > start else f"{start}"
            changes = difflib.unified_diff(sides["|"], sides["<"], written_on, title, lineterm="", n=0)
            shown = [change for change in changes if not change.startswith("@@")]
            yield Conflict(f"{path}:{there} of {title}", shown)
        elif not mark and side in {"", "<"}:
            number += 1
        if mark:
            side = "" if mark == ">" else mark
        elif side:
            sides[side].append(line)


def held(layout: Layout, release: Release, written_on: Release, patches: list[Patch]) -> list[Finding]:
    """Hold the patches of a line against a release, in disposable checkouts, going on past what does not apply."""
    layout.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="try-", dir=layout.work, ignore_cleanup_errors=True) as folder:
        made, tried = Path(folder) / "reference", Path(folder) / "tried"
        made.mkdir()
        tried.mkdir()
        commits = reference(layout, written_on, patches, made)
        make_base(layout, release, fetch.fetch(layout, release), tried)
        git = Git(tried, step=STEP)
        git("fetch", "--quiet", made, "HEAD")
        with console.step(f"{release.version}: try {count(len(patches), 'patch')}") as progress:
            found: list[Finding] = []
            for patch, commit in zip(patches, commits, strict=True):
                progress.note(f"{patch.index} of {patch.total}")
                found.append(hold(git, patch, commit, release.version, written_on.version))
    return found


# endregion


def _arguments(layout: Layout, table: Releases, base: str, line: str) -> tuple[str, str, Release]:
    """Check what was asked for, and return the version, the line and the release that the line is written on."""
    try:
        version = str(Version(base))
    except InvalidVersion:
        what = f"{base} is not a version" if base else "which release?"
        raise PatchsetError(STEP, what, next="make try BASE=<release> [LINE=<line>]", exit_code=USAGE) from None
    lines = table.lines()
    line = line or table.default.served_line
    if line not in lines:
        raise PatchsetError(
            STEP,
            f"there is no line {line}",
            where="patches/releases.toml",
            state=f"there are: {', '.join(lines)}",
            next="give one of them as LINE=, or none for the newest",
            exit_code=USAGE,
        )
    return version, line, lines[line][-1]


def report(release: Release, line: str, findings: list[Finding], limit: int | None) -> list[str]:
    """Return everything that does not apply, as text."""
    blocks = ["\n".join(finding.lines(limit)) for finding in findings if finding.fit is not Fit.APPLIES]
    fits = ", ".join(
        f"{number} {'apply' if fit is Fit.APPLIES else fit.value}"
        for fit in Fit
        if (number := sum(finding.fit is fit for finding in findings))
    )
    return [*blocks, f"{release.version} with the line {line}: {fits or 'no patches'}"]


@click.command("try", short_help="Hold a series against another release.")
@click.option("--base", default="", metavar="VERSION", help="The release; the table need not have it.")
@click.option("--line", default="", help="The line whose series is tried; the newest when left out.")
@pass_layout
def command(layout: Layout, base: str, line: str) -> None:
    """Say of each patch of a line whether it applies to a release, is there already, or conflicts with what."""
    table = releases.load(layout)
    version, line, written_on = _arguments(layout, table, base, line)
    release, text = known(layout, table, version)
    findings = held(layout, release, written_on, load_series(layout, line))
    rows = [[f"{found.patch.index} {found.patch.subject}", found.fit.value, _places(found)] for found in findings]
    console.table(
        f"{version} with the line {line}, written on {written_on.version}", ["patch", "result", "places"], rows
    )
    kept = layout.build / "try" / f"{version}-{line}.txt"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text("\n".join([*report(release, line, findings, None), ""]), encoding="utf-8", errors="replace")
    for block in report(release, line, findings, _SHOWN):
        console.say(block.encode("utf-8", "replace").decode())
    console.say(f"in full: {layout.show(kept)}")
    if text:
        console.say(f"\n{version} is not in patches/releases.toml; its row would be:\n\n{text.strip()}\n")
    fitting = all(finding.fit is Fit.APPLIES for finding in findings)
    if fitting and release.line is None:
        console.say(
            f'to serve it: add line = "{line}" and local = 1 to its row, what it promises to python/contract.toml and '
            f"its minimum to patches/{line}/expected-changes.toml; write requirements/{version}.in; then: "
            f"make lock BASE={version} && make test BASE={version} && make prove BASE={version}"
        )
    if not fitting:
        stopped = [finding for finding in findings if finding.fit is not Fit.APPLIES]
        raise PatchsetError(
            STEP,
            f"{len(stopped)} of {count(len(findings), 'patch')} of the line {line} "
            f"{'does' if len(stopped) == 1 else 'do'} not apply to {version}",
            next="patches/README.md says how a series is refreshed",
            exit_code=FAILED,
        )


def _places(finding: Finding) -> str:
    if finding.fit in {Fit.APPLIES, Fit.THERE} or finding.diagnosis is None:
        return ""
    return str(len(finding.conflicts or finding.diagnosis.where.splitlines()))
