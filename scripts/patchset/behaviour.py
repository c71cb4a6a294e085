"""The behaviour tests of `python/`: what they consist of, and how they get into a disposable tree and run there."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path, PurePosixPath

from patchset import console, contract
from patchset.envs import Env
from patchset.errors import PatchsetError
from patchset.paths import Layout
from patchset.prepared import Base
from patchset.reports import Report
from patchset.suites import Tree, counts, existing_files, run_tests, slug, tree, workers

STEP = "behaviour tests"


def files(layout: Layout) -> list[PurePosixPath]:
    """Return the files of the behaviour tests and of what they use, relative to `python/`."""
    every = (layout.behaviour / "packages").rglob("*")
    found = [path for path in every if path.is_file() and "__pycache__" not in path.parts]
    return sorted(PurePosixPath(path.relative_to(layout.behaviour)) for path in found)


def add(layout: Layout, target: Tree) -> list[Path]:
    """Copy the behaviour tests into a tree and return what was new there.

    Raises:
        PatchsetError: A file would replace another one: upstream's tests are a net, and nothing may cut it.
    """
    new: list[Path] = []
    for file in files(layout):
        content = (layout.behaviour / file).read_bytes()
        copy = target.python / file
        if copy.exists():
            if copy.read_bytes() != content:
                raise PatchsetError(
                    STEP,
                    f"python/{file} differs from upstream's file of that name",
                    where=f"python/{file}",
                    next="rename it: behaviour tests stand next to upstream's, they do not replace them",
                )
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)
        new.append(copy)
    return new


def run(base: Base, title: str, env: Env | None = None) -> Report:
    """Run the behaviour tests about what a base promises, on its patched core and next to upstream's tests.

    Args:
        base: The base.
        title: What progress and log are called.
        env: An environment that has the patched core in it; the base's, with that core on the path, when left out.
    """
    lines = base.lines
    chosen = contract.test_files(base.layout, files(base.layout), lines)
    if not chosen:
        return Report()
    core = None if env else base.patched
    with console.step(title) as progress, tree(base.layout, base.checkout, base.applied.commit, base.suite) as made:
        add(base.layout, made)
        report = run_tests(env or base.env, made, core, chosen, log=slug(title), lines=lines, workers=workers())
        progress.outcome = counts(report)
    return report


def run_named(base: Base, commit: str, tests: Collection[str], log: str) -> Report:
    """Run tests by their ids, alone and in one process, on core of a commit.

    Args:
        base: The base.
        commit: The commit.
        tests: Ids of behaviour tests or of upstream's, with or without parameters, or of files or classes of them.
        log: The name under which what pytest printed is kept.
    """
    core = base.core(commit)
    with tree(base.layout, base.checkout, base.applied.base, base.suite) as made:
        add(base.layout, made)
        paths = existing_files(made, tests)
        return run_tests(base.env, made, core, paths, log=log, only=tests) if paths else Report()
