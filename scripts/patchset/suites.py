"""Run suites of tests on core of a commit, in a disposable tree, and compare what passes without and with the patches.

The tree has upstream's layout and settings and every test, but not core's source: what is tested is the installed core
that is on the path.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from packaging.version import Version

from patchset import reports
from patchset.base import read_archive
from patchset.core import export
from patchset.envs import Env
from patchset.errors import PatchsetError
from patchset.fetch import fetch_archive, workspace_archive
from patchset.paths import CORE, Layout
from patchset.proc import run, tail
from patchset.releases import Release, load
from patchset.reports import Report

STEP = "tests"
PLUGINS = Path(__file__).resolve().parents[1] / "plugins"
_PACKAGE = PurePosixPath("packages/core")
_SOURCE = "agent_framework"
_NOTHING_COLLECTED = 5


@dataclass(frozen=True)
class Suite:
    """Upstream's own tests of core, as one release's workspace archive has them."""

    provider: Release

    @property
    def digest(self) -> str:
        return self.provider.workspace_sha256

    def write(self, layout: Layout, target: Path) -> None:
        """Write the tests into `target`, the `python` folder of a tree."""
        archive = workspace_archive(self.provider)
        for name, (content, _) in read_archive(fetch_archive(layout, archive), archive).items():
            if name.is_relative_to(_PACKAGE / "tests"):
                file = target / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)


def suite_of(layout: Layout, release: Release) -> Suite:
    """Return the suite that is the net of `release`: its own, or the newest published one before it.

    Raises:
        PatchsetError: No release up to this one has published its tests.
    """
    known = [row for row in load(layout).rows if row.suite and Version(row.version) <= Version(release.version)]
    if not known:
        raise PatchsetError(STEP, f"no release up to {release.version} carries a suite", where="patches/releases.toml")
    return Suite(known[-1])


@dataclass(frozen=True)
class Tree:
    """A disposable tree of one commit, with tests and without core's source."""

    layout: Layout
    root: Path
    folder: Path = CORE
    """The package whose tests are in it."""

    @property
    def python(self) -> Path:
        return self.root / "python"

    @property
    def package(self) -> Path:
        return self.root / self.folder


@contextmanager
def tree(layout: Layout, checkout: Path, commit: str, suite: Suite | None = None) -> Generator[Tree]:
    """Make a disposable tree of `commit`.

    Args:
        layout: Where things are.
        checkout: The repository that has the commit.
        commit: The commit.
        suite: Upstream's tests, where the commit may lack them.

    Yields:
        The tree; core's source is still in it.
    """
    layout.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{commit[:12]}-", dir=layout.work, ignore_cleanup_errors=True) as folder:
        made = Tree(layout, Path(folder))
        export(checkout, commit, made.root, "python/pyproject.toml", CORE)
        if suite:
            suite.write(layout, made.python)
        yield made


def run_tests(
    env: Env,
    target: Tree,
    core: Path | None,
    paths: Sequence[str],
    *,
    log: str,
    only: Collection[str] | None = None,
    lines: Collection[str] | None = None,
    workers: int = 0,
) -> Report:
    """Run pytest in a tree, on an installed core.

    Args:
        env: The environment.
        target: The tree; core's source goes out of it.
        core: The folder that has core installed; None where the environment has it.
        paths: What to collect, relative to the core package.

    Keyword Args:
        log: The name under which what pytest printed is kept in `build/logs`.
        only: Test ids to run, with every parameter they have; everything that was collected when left out.
        lines: Contract lines; a test that is about any other is left out. None leaves nothing out.
        workers: How many processes; none but pytest's own for 0.

    Returns:
        What was reported.

    Raises:
        PatchsetError: Pytest itself failed.
    """
    if (target.package / _SOURCE).exists():
        shutil.rmtree(target.package / _SOURCE)
    printed_to = target.layout.build / "logs" / f"{log}.log"
    printed_to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=target.root) as folder:
        report_log = Path(folder) / "report.jsonl"
        command: list[str | Path] = [env.python, "-m", "pytest", "-p", "patchset_suite", "-p", "no:cacheprovider"]
        # Said outright, or pytest looks for them from wherever the paths of all its options meet.
        command += ["-c", target.package / "pyproject.toml", "--rootdir", target.package]
        command += ["--continue-on-collection-errors", "-m", "not integration"]
        command += ["--report-log", report_log, "--basetemp", Path(folder) / "temp"]
        # A file stays in one process, so that its tests meet the same neighbours in every run.
        command += ["-n", str(workers), "--dist", "loadfile"] if workers else ["-n", "0"]
        if only is not None:
            chosen = Path(folder) / "only.json"
            chosen.write_text(json.dumps(sorted(only)), encoding="utf-8")
            command += ["--only", chosen]
        if lines is not None:
            command += ["--lines", ",".join(sorted(lines))]
        home = Path(folder) / "home"
        home.mkdir()
        done = run(
            [*command, *paths],
            step=STEP,
            what="pytest failed",
            cwd=target.package,
            env=env.suite_environ(home, [core, PLUGINS] if core else [PLUGINS]),
            check=False,
        )
        printed_to.write_bytes(done.stdout + done.stderr)
        where = target.layout.show(printed_to)
        printed = tail((done.stdout + done.stderr).decode("utf-8", "replace"))
        report = Report()
        if report_log.is_file():
            report = reports.read_file(report_log, where=where, status=done.returncode, printed=printed)
        if done.returncode in {0, 1, _NOTHING_COLLECTED} or (done.returncode == 2 and report.uncollected):
            return report
    raise PatchsetError(
        STEP,
        f"pytest left with status {done.returncode}",
        where=where,
        state=shlex.join(str(word) for word in command),
        next=f"read {where}, then the same command again",
        output=printed,
    )


def workers() -> int:
    """Return how many processes a suite is worth."""
    return min(os.cpu_count() or 1, 4)


def counts(report: Report) -> str:
    """Return the outcomes of a run in words, most of them first."""
    known = ((outcome.value, report.count(outcome)) for outcome in reports.Outcome)
    parts = [f"{number} {name}" for name, number in known if number]
    if report.uncollected:
        parts.append(f"{len(report.uncollected)} files not importable")
    return ", ".join(parts) or "no tests"


def covers(named: str, test: str) -> bool:
    """Return whether the id `named`, with or without parameters, is the test `test`."""
    return named in {test, test.partition("[")[0]}


def contains(named: str, test: str) -> bool:
    """Return whether `named`, the id of a test, a class or a file, has the test `test` in it."""
    return covers(named, test) or test.startswith(f"{named}::")


def files_of(named: Iterable[str]) -> list[str]:
    """Return the files of test ids, each once."""
    return sorted({name.partition("::")[0] for name in named})


def existing_files(target: Tree, named: Iterable[str]) -> list[str]:
    """Return the files of test ids that a tree has; pytest runs nothing at all when one is not there."""
    return [file for file in files_of(named) if (target.package / file).is_file()]


def slug(title: str) -> str:
    """Return a title as the name of a file."""
    return "-".join("".join(letter if letter.isalnum() or letter == "." else " " for letter in title).split())
