"""`make lint`: what a patch set has to be for somebody else to keep it.

Headers say why; every file of a series is in the form that `make export` writes and applies without fuzz to every
release that its line serves; every promise has a test that runs; a wheel whose patches changed has a new number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click
import tomlkit

from patchset import console, contract, expected, headers
from patchset.apply import apply
from patchset.base import BASE_REF
from patchset.behaviour import files as behaviour_files
from patchset.checkout import SERIES_REF
from patchset.errors import PatchsetError, SeveralErrors
from patchset.export import format_series
from patchset.marks import MarkedTest, read_tests
from patchset.options import count, pass_layout
from patchset.paths import Layout
from patchset.proc import Git
from patchset.prove import read_claim
from patchset.releases import Release, Releases, load
from patchset.series import Patch, load_series, series_paths

STEP = "lint"

_PACKAGE = "packages/core/"


def series_problems(layout: Layout, line: str, patches: list[Patch]) -> list[str]:
    """Return what is wrong with the folder and the headers of a line."""
    folder = layout.series(line)
    shown = layout.show(folder)
    found: list[str] = []
    if not patches:
        found.append(f"{shown}: the line is served and has no patch")
    known = {patch.path for patch in patches} | {folder / expected.FILE}
    found += [f"{layout.show(path)}: is no part of a series" for path in sorted(folder.glob("*")) if path not in known]
    for number, patch in enumerate(patches, 1):
        where = layout.show(patch.path)
        wrong = headers.problems(patch)
        if patch.trailer("Tests"):
            claim = read_claim(patch, patches[number:])
            wrong += claim.problems + [problem for test in claim.tests for problem in _missing_test(layout, test)]
        touched = [file.path for file in patch.files()]
        wrong += [f"touches {path}, outside of python/" for path in touched if not path.startswith("python/")]
        found += [f"{where}: {problem}" for problem in wrong]
    return found


def _missing_test(layout: Layout, test: str) -> Iterator[str]:
    """Yield that a behaviour test that a header names is not there; one of upstream's is looked for by `make prove`."""
    file, _, name = test.partition("::")
    path = layout.behaviour / _PACKAGE / file
    if path.is_file() and name.partition("[")[0] not in {known.name for known in read_tests(path)}:
        yield f"Tests: {test} is not in {layout.show(path)}"


def replacement_problems(layout: Layout, wanted: expected.Expected) -> list[str]:
    """Return which overruled tests have no behaviour test about the contract line that stands in for them."""
    found: list[str] = []
    for change in wanted.changes:
        file, _, name = change.replaced_by.partition("::")
        path = layout.behaviour / _PACKAGE / file
        tests = read_tests(path) if path.is_file() else []
        if not any(test.name == name.partition("[")[0] and change.contract in test.lines for test in tests):
            found.append(f"{wanted.where}: {change.replaced_by} is no behaviour test about {change.contract}")
    return found


def drift(layout: Layout, line: str, reference: Release) -> list[str]:
    """Return how the files of a line differ from what `make export` would write.

    Raises:
        PatchsetError: The series does not apply.
    """
    applied = apply(layout, reference)
    git = Git(applied.checkout.path, step=STEP)
    written = {path.name: path.read_bytes() for path in series_paths(layout, line)}
    wanted = format_series(git, git("rev-parse", BASE_REF), git("rev-parse", SERIES_REF))
    shown = layout.show(layout.series(line))
    advice = f"(make export BASE={reference.version})"
    found = [f"{shown}/{name}: should be called otherwise {advice}" for name in written if name not in wanted]
    return found + [
        f"{shown}/{name}: is not in the form that export writes {advice}"
        for name in wanted
        if name in written and written[name] != wanted[name]
    ]


def contract_problems(layout: Layout, served: tuple[Release, ...]) -> list[str]:
    """Return which promises of a served base have no test, or one that may be skipped."""
    tests: list[tuple[str, MarkedTest]] = []
    for file in behaviour_files(layout):
        if file.suffix == ".py" and file.name.startswith("test_"):
            path = layout.behaviour / file
            tests += [(layout.show(path), test) for test in read_tests(path)]
    found: list[str] = []
    skipped: dict[str, list[str]] = {}
    for release in served:
        promised = contract.promised(layout, release.version)
        # As pytest is told: a test about several lines runs where all of them are promised.
        run = [(file, test) for file, test in tests if test.lines and test.lines <= promised]
        untested = promised - {line for _, test in run for line in test.lines}
        found += [
            f"python/contract.toml: {release.version} promises {line}, which has no test"
            for line in sorted(untested, key=contract.sort_key)
        ]
        for file, test in run:
            if test.skip:
                what = f"{file}:{test.number}: {test.name} may be skipped ({test.skip}), and "
                what += f"{', '.join(sorted(test.lines, key=contract.sort_key))} is promised on "
                skipped.setdefault(what, []).append(release.version)
    return found + [what + ", ".join(versions) for what, versions in skipped.items()]


def wheel_problems(layout: Layout, releases: Releases) -> list[str]:
    """Return which wheels need a new number: their series changed since the last tag, the number did not."""
    git = Git(layout.root, step=STEP)
    tag = git.read("describe", "--tags", "--abbrev=0") if (layout.root / ".git").exists() else None
    if not tag:
        return []
    table = git.read("show", f"{tag}:patches/releases.toml")
    rows: list[dict[str, Any]] = tomlkit.parse(table).unwrap().get("release", []) if table else []
    numbers: dict[str, tuple[str, int]] = {row["version"]: (row["line"], row["local"]) for row in rows if "line" in row}
    found: list[str] = []
    for release in releases.served:
        if release.version not in numbers or release.local is None:
            continue
        line, number = numbers[release.version]
        changed = line != release.line or _series_at(git, tag, line) != _series_now(layout, git, line)
        if release.local < number + changed:
            found.append(
                f"patches/releases.toml: {release.version} has local = {release.local}; "
                + (f"its series changed since {tag}: " if changed else f"{tag} has a higher one: ")
                + f"local = {number + changed}"
            )
    return found


def _series_at(git: Git, tag: str, line: str) -> dict[str, str]:
    listed = git.read("ls-tree", f"{tag}:patches/{line}") or ""
    entries = (re.split(r"[ \t]", entry, maxsplit=3) for entry in listed.splitlines())
    return {name: blob for _, _, blob, name in entries if name.endswith(".patch")}


def _series_now(layout: Layout, git: Git, line: str) -> dict[str, str]:
    paths = series_paths(layout, line)
    return {path.name: git("hash-object", "--no-filters", path) for path in paths}


def lint(layout: Layout) -> tuple[Releases, int]:
    """Check everything, and say at the end what is wrong.

    Returns:
        The releases and how many patches were looked at.

    Raises:
        PatchsetError: Something is wrong; the message lists all of it.
    """
    releases = load(layout)
    found: list[str] = []
    errors: list[PatchsetError] = []
    patches = 0
    for line, rows in releases.lines().items():
        try:
            series = load_series(layout, line)
            patches += len(series)
            found += series_problems(layout, line, series)
            found += drift(layout, line, rows[-1])
            promised = frozenset(name for row in rows for name in contract.promised(layout, row.version))
            wanted = expected.load(layout, line, promised)
            found += replacement_problems(layout, wanted)
            found += [
                f"{wanted.where}: no minimum for {row.version}: say how many of upstream's tests pass on it unpatched"
                for row in rows
                if row.version not in wanted.minimum
            ]
        except PatchsetError as error:
            errors.append(error)
        for row in rows[:-1]:
            try:
                apply(layout, row)
            except PatchsetError as error:
                errors.append(error)
    for check in (lambda: contract_problems(layout, releases.served), lambda: wheel_problems(layout, releases)):
        try:
            found += check()
        except PatchsetError as error:
            errors.append(error)
    served = set(releases.lines())
    folders = sorted(path for path in layout.patches.iterdir() if path.is_dir() and path.name not in served)
    found += [f"{layout.show(path)}: no release is served by it" for path in folders if any(path.glob("*.patch"))]
    if found:
        errors.insert(0, PatchsetError(STEP, count(len(found), "problem"), output="\n".join(found)))
    # Two checks may stumble over one fault, as over a contract that does not speak of a base.
    if errors := list({error.render(): error for error in errors}.values()):
        raise errors[0] if len(errors) == 1 else SeveralErrors(errors)
    return releases, patches


@click.command("lint", short_help="Check the form of the patches, the marks of the tests, the numbers of the wheels.")
@pass_layout
def command(layout: Layout) -> None:
    """Check the form of the patches, the marks of the tests and the numbers of the wheels."""
    with console.step("lint"):
        releases, patches = lint(layout)
    lines = ", ".join(releases.lines())
    served = count(len(releases.served), "release")
    console.say(f"lint: {count(patches, 'patch')} of {lines} and the promises of {served} are in order")
