"""`make siblings`: the suites of packages that build on core, on the unpatched and on the patched core of a base.

The packages themselves are installed as released; their tests come from upstream's workspace archive, or from the
package's own archive where the workspace's is not published any more.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import click

from patchset import console, tables
from patchset.apply import apply
from patchset.base import read_archive
from patchset.compare import judge
from patchset.envs import check_python, ensure_named
from patchset.errors import USAGE, PatchsetError
from patchset.expected import Expected
from patchset.fetch import Archive, fetch_archive, workspace_archive
from patchset.options import base_option, pass_layout
from patchset.paths import Layout
from patchset.prepared import Base
from patchset.releases import Release, load
from patchset.reports import Outcome, Report
from patchset.suites import Tree, counts, existing_files, run_tests, slug, workers
from patchset.summary import Gate, Session, listed

STEP = "siblings"
FILE = "siblings.toml"
_PACKAGES = PurePosixPath("packages")
_VERSION = re.compile(rb'^version = "([^"]+)"$', re.MULTILINE)
_KEYS = {"base": str, "package": str, "minimum": int}
_ARCHIVE_KEYS = {"version": str, "sha256": str, "size": int}


@dataclass(frozen=True)
class Sibling:
    """A package whose suite is run on one base."""

    base: str
    package: str
    """Its folder among upstream's packages."""
    minimum: int
    """How many of its tests pass at least on the unpatched base."""
    archive: Archive | None
    """Its own archive, where its tests are in no workspace archive of the base."""

    @property
    def project(self) -> str:
        return f"agent-framework-{self.package}"

    @property
    def folder(self) -> Path:
        return Path("python/packages", self.package)


def load_siblings(layout: Layout, version: str) -> list[Sibling]:
    """Read the siblings of a base.

    Raises:
        PatchsetError: The file says something that it may not, or nothing of the base.
    """
    path = layout.patches / FILE
    found = [
        _sibling(layout, row, number) for number, row in enumerate(tables.rows(layout, path, "suite", step=STEP), 1)
    ]
    chosen = [sibling for sibling in found if sibling.base == version]
    if not chosen:
        raise PatchsetError(STEP, f"{FILE} has no suite for {version}", where=layout.show(path), exit_code=USAGE)
    return chosen


def _sibling(layout: Layout, row: dict[str, Any], number: int) -> Sibling:
    own = bool(row.keys() & _ARCHIVE_KEYS.keys())
    keys = _KEYS | (_ARCHIVE_KEYS if own else {})
    if row.keys() != keys.keys() or any(type(row[key]) is not kind for key, kind in keys.items()):
        raise PatchsetError(
            STEP,
            f"suite {number} needs {', '.join(_KEYS)}, and {', '.join(_ARCHIVE_KEYS)} when it comes from an archive of "
            "its own",
            where=layout.show(layout.patches / FILE),
            exit_code=USAGE,
        )
    archive = Archive(f"agent-framework-{row['package']}", row["version"], row["sha256"], row["size"]) if own else None
    return Sibling(row["base"], row["package"], row["minimum"], archive)


def prepare(layout: Layout, release: Release) -> Base:
    """Apply the series of a release, and make the environment of what builds on core."""
    return Base(layout, release, apply(layout, release), ensure_named(layout, f"dependents-{release.version}"))


def files(base: Base, sibling: Sibling) -> dict[PurePosixPath, bytes]:
    """Return the tests of a sibling and their settings, by their path in its folder.

    Raises:
        PatchsetError: The tests are of another version than the package that is installed.
    """
    archive = sibling.archive or workspace_archive(base.release)
    read = read_archive(fetch_archive(base.layout, archive), archive)
    top = PurePosixPath() if sibling.archive else _PACKAGES / sibling.package
    found = {
        name.relative_to(top): content
        for name, (content, _) in read.items()
        if name == top / "pyproject.toml" or name.is_relative_to(top / "tests")
    }
    stated = _VERSION.search(found.get(PurePosixPath("pyproject.toml"), b""))
    lock = base.layout.requirements / f"dependents-{base.name}.txt"
    locked = re.search(rf"^{re.escape(sibling.project)}==(\S+)", lock.read_text(encoding="utf-8"), re.MULTILINE)
    if stated is None or locked is None or stated[1].decode() != locked[1]:
        raise PatchsetError(
            STEP,
            f"the tests of {sibling.project} are of {stated[1].decode() if stated else 'no version'}, "
            f"installed is {locked[1] if locked else 'none'}",
            where=base.layout.show(lock),
            next=f"pin it in requirements/dependents-{base.name}.in, then: make lock BASE=dependents-{base.name}",
        )
    return found


@contextmanager
def tree(base: Base, sibling: Sibling) -> Generator[Tree]:
    """Make a disposable tree with the tests of a sibling, and without its source."""
    base.layout.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f"{sibling.package}-", dir=base.layout.work, ignore_cleanup_errors=True
    ) as folder:
        made = Tree(base.layout, Path(folder), sibling.folder)
        for name, content in files(base, sibling).items():
            path = made.package / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        yield made


def run_sibling(base: Base, sibling: Sibling, core: Path, title: str, only: Collection[str] | None = None) -> Report:
    """Run the suite of a sibling on an installed core, or some of its tests alone."""
    with console.step(title) as progress, tree(base, sibling) as made:
        paths = ["tests"] if only is None else existing_files(made, only)
        count = workers() if only is None else 0
        report = run_tests(base.env, made, core, paths, log=slug(title), only=only, workers=count)
        progress.outcome = counts(report)
    return report


def hold(base: Base, sibling: Sibling, gate: Gate) -> None:
    """Hold what passes on the patched core against what passes on the unpatched one.

    Raises:
        PatchsetError: A test is lost, or fewer pass than there have to be.
    """
    title = f"{base.name}: the suite of {sibling.project}"
    stock = run_sibling(base, sibling, base.stock, f"{title}, unpatched")
    patched = run_sibling(base, sibling, base.patched, f"{title}, patched")

    def again(tests: frozenset[str]) -> tuple[Report, Report]:
        alone = f"{title}: {len(tests)} tests once more, alone"
        return (
            run_sibling(base, sibling, base.stock, f"{alone}, unpatched", tests),
            run_sibling(base, sibling, base.patched, f"{alone}, patched", tests),
        )

    where = base.layout.show(base.layout.patches / FILE)
    verdict = judge(stock, patched, Expected(where, {base.name: sibling.minimum}, ()), base.name, again)
    gate.tests_passed, gate.tests_failed = len(patched.passed), len(verdict.lost)
    notes = [f"{len(stock.passed):,} pass unpatched", f"{patched.count(Outcome.SKIPPED)} skipped"]
    if known := patched.broken.keys() & stock.broken.keys():
        notes.append(f"{len(known)} fail unpatched, too")
    if verdict.unstable:
        notes.append(f"unstable: {', '.join(sorted(verdict.unstable))}")
    gate.note = "; ".join(notes)
    if not verdict.ok:
        raise PatchsetError(
            "suite",
            f"{len(verdict.lost)} tests of {sibling.project} pass unpatched and not patched"
            if verdict.lost
            else f"the suite of {sibling.project} is not what it should be",
            output="\n".join([*listed(verdict.lost), *verdict.problems]),
            where=f"build/logs/{slug(f'{title}, patched')}.log" if verdict.lost else where,
        )


@click.command("siblings", short_help="Run the suites of packages that build on core.")
@base_option
@pass_layout
def command(layout: Layout, base: str) -> None:
    """Run the suites of packages that build on core, unpatched and patched, and compare what passes."""
    bases = load(layout).resolve(base)
    check_python()
    session = Session()
    for release in bases:
        prepared: list[tuple[Base, list[Sibling]]] = []

        def make(gate: Gate, release: Release = release, prepared: list[Any] = prepared) -> None:
            prepared.append((prepare(layout, release), load_siblings(layout, release.version)))

        if session.gate(release.version, "environment", make):
            made, siblings = prepared[0]
            for sibling in siblings:
                session.gate(
                    release.version,
                    sibling.project,
                    lambda gate, made=made, sibling=sibling: hold(made, sibling, gate),
                )
    sys.exit(session.finish("make siblings"))
