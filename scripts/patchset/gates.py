"""`make test`: upstream's own gates on the patched checkout, the behaviour tests, and the tests of the tooling.

Every gate runs whatever the others say; what failed is listed together at the end.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from patchset import behaviour, checks, console, contract, expected
from patchset.apply import ApplyResult, apply
from patchset.compare import Verdict, judge
from patchset.core import core_site
from patchset.envs import Env, check_python, ensure_env
from patchset.errors import PatchsetError
from patchset.options import base_option, pass_layout
from patchset.paths import CORE, Layout
from patchset.proc import Git, python_env, run, tail
from patchset.releases import Release, load
from patchset.reports import Outcome, Report, read_file
from patchset.suites import (
    Suite,
    counts,
    covers,
    files_of,
    run_stock,
    run_tests,
    run_upstream,
    slug,
    suite_of,
    tree,
    workers,
)
from patchset.summary import Gate, Session

STEP = "test"
_SHOWN = 25


@dataclass
class Base:
    """What the gates of one base share."""

    layout: Layout
    release: Release
    applied: ApplyResult
    env: Env
    suite: Suite
    lines: frozenset[str]

    @property
    def name(self) -> str:
        return self.release.version

    @property
    def checkout(self) -> Path:
        return self.applied.checkout.path

    @property
    def stock(self) -> Path:
        """Core of the unpatched base."""
        return core_site(self.layout, self.env, self.checkout, self.applied.base)

    @property
    def patched(self) -> Path:
        """Core of the patched base."""
        return core_site(self.layout, self.env, self.checkout, self.applied.commit)


def prepare(layout: Layout, release: Release) -> Base:
    """Make everything that the gates of a base need.

    Raises:
        PatchsetError: The series does not apply, or the environment cannot be made.
    """
    applied = apply(layout, release)
    env = ensure_env(layout, release)
    lines = contract.promised(layout, release.version)
    return Base(layout, release, applied, env, suite_of(layout, release), lines)


def _ids(found: dict[str, str]) -> str:
    lines = [f"{name}: {reason}" if reason else name for name, reason in sorted(found.items())]
    return "\n".join(lines[:_SHOWN] + ([f"... and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []))


def _rerun(base: Base, missing: frozenset[str]) -> tuple[Report, Report]:
    """Run some of upstream's tests alone, unpatched and patched."""
    results: list[Report] = []
    for kind, core in (("unpatched", base.stock), ("patched", base.patched)):
        title = f"{base.name}: {len(missing)} tests once more, alone, {kind}"
        with console.step(title) as progress, tree(base.layout, base.checkout, base.applied.base, base.suite) as made:
            files = [file for file in files_of(missing) if (made.package / file).is_file()]
            report = run_tests(base.env, made, core, files, log=slug(f"{base.name} alone {kind}"), only=missing)
            progress.outcome = counts(report)
        results.append(report)
    return results[0], results[1]


def upstream_suite(base: Base, gate: Gate) -> Verdict:
    """Run upstream's suite, unpatched and patched, and compare what passes.

    Raises:
        PatchsetError: The patches break a test that the contract does not overrule.
    """
    wanted = expected.load(base.layout, base.release.served_line, _promised_by_line(base))
    arguments = (base.layout, base.env, base.checkout, base.applied.base, base.suite)
    stock = run_stock(*arguments, base.stock, f"{base.name}: upstream's suite, unpatched")
    title = f"{base.name}: upstream's suite, patched"
    patched = run_upstream(*arguments, base.patched, title)
    verdict = judge(stock, patched, wanted, base.name, lambda missing: _rerun(base, missing))
    gate.tests_passed, gate.tests_failed = len(patched.passed), len(verdict.lost)
    notes = [f"{len(stock.passed):,} pass unpatched", f"{patched.count(Outcome.SKIPPED)} skipped"]
    if known := patched.broken.keys() & stock.broken.keys():
        notes.append(f"{len(known)} fail unpatched, too")
    if verdict.overruled:
        notes.append(f"{len(verdict.overruled)} overruled by the contract")
    if verdict.unstable:
        notes.append(f"unstable: {', '.join(sorted(verdict.unstable))}")
    gate.note = "; ".join(notes)
    if verdict.lost:
        raise PatchsetError(
            "suite",
            f"{len(verdict.lost)} of upstream's tests pass unpatched and not patched",
            output=_ids(verdict.lost) + "".join(f"\n{problem}" for problem in verdict.problems),
            where=f"build/logs/{slug(title)}.log",
            next=f"mend the patch; or, where a contract line overrules the test, say so in {wanted.where}",
        )
    if verdict.problems:
        raise PatchsetError(
            "suite", "the suite is not what it should be", output="\n".join(verdict.problems), where=wanted.where
        )
    return verdict


def _promised_by_line(base: Base) -> frozenset[str]:
    releases = load(base.layout).lines()[base.release.served_line]
    return frozenset(line for row in releases for line in contract.promised(base.layout, row.version))


def behaviour_tests(base: Base, gate: Gate) -> Report:
    """Run the behaviour tests about what the base promises.

    Raises:
        PatchsetError: A test fails, a promise has no test, or a promised one is skipped.
    """
    title = f"{base.name}: behaviour tests"
    arguments = (base.layout, base.env, base.checkout, base.applied.commit, base.suite, base.patched)
    report = behaviour.run(*arguments, base.lines, title)
    gate.tests_passed, gate.tests_failed = len(report.passed), len(report.broken)
    gate.note = ", ".join(sorted(base.lines, key=contract.sort_key))
    problems = contract.problems(base.name, base.lines, report)
    problems += contract.unmarked_files(base.layout, behaviour.files(base.layout))
    wanted = expected.load(base.layout, base.release.served_line, _promised_by_line(base))
    replacing = {change.replaced_by for change in wanted.changes}
    problems += [
        f"{name} replaces one of upstream's tests and does not pass"
        for name in sorted(replacing)
        if not any(covers(name, test) for test in report.passed)
    ]
    if report.broken or problems:
        what = f"{len(report.broken)} behaviour tests fail" if report.broken else "the contract is not covered"
        raise PatchsetError(
            "behaviour",
            what,
            output=_ids(report.broken) + "".join(f"\n{problem}" for problem in problems),
            where=f"build/logs/{slug(title)}.log",
        )
    return report


def behaviour_style(base: Base, gate: Gate) -> None:
    """Check the behaviour tests with ruff, under the settings of the base: they are written to go upstream.

    Raises:
        PatchsetError: Ruff has something to say.
    """
    with tree(base.layout, base.checkout, base.applied.commit) as made:
        files = [path.relative_to(made.package) for path in behaviour.add(base.layout, made) if path.suffix == ".py"]
        gate.note = f"{len(files)} files"
        if files:
            checks.ruff_check(base.env, made.package, files)
            checks.ruff_format(base.env, made.package, files)


def run_base(session: Session, layout: Layout, release: Release) -> None:
    """Run the gates of one base."""
    name = release.version
    prepared: list[Base] = []
    if not session.gate(name, "apply", lambda gate: prepared.append(prepare(layout, release))):
        return
    base = prepared[0]
    package = base.checkout / CORE
    git = Git(base.checkout, step="clean")

    def state() -> str:
        return git("rev-parse", "HEAD") + "\n" + git("status", "--porcelain", "--untracked-files=all", "--ignored")

    def clean(gate: Gate) -> None:
        if (after := state()) != before:
            raise PatchsetError(
                "clean",
                "the gates changed the checkout",
                where=base.applied.checkout.shown,
                output=f"{before}\n->\n{after}",
            )

    before = state()
    session.gate(name, "ruff check", lambda gate: checks.ruff_check(base.env, package))
    session.gate(name, "ruff format", lambda gate: checks.ruff_format(base.env, package))
    with console.step(f"{name}: pyright") as progress:
        if not session.gate(name, "pyright", lambda gate: checks.pyright(base.env, package)):
            progress.outcome = "FAILED"
    session.gate(name, "upstream's suite", lambda gate: void(upstream_suite(base, gate)))
    session.gate(name, "behaviour tests", lambda gate: void(behaviour_tests(base, gate)))
    session.gate(name, "behaviour tests: ruff", lambda gate: behaviour_style(base, gate))
    session.gate(name, "checkout clean", clean)


def void(result: object) -> None:
    """Drop a result that a gate has no use for."""


def tooling_tests(layout: Layout, bases: Sequence[Release], gate: Gate) -> None:
    """Run the tests of the tooling, in the environment of the tools.

    Raises:
        PatchsetError: A test fails.
    """
    log = layout.build / "logs" / "tooling.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, console.step("tests of the tooling") as progress:
        report_log = Path(folder) / "report.jsonl"
        done = run(
            [sys.executable, "-m", "pytest", "-n", str(workers()), "--report-log", report_log, "tests"],
            step="tests",
            what="pytest failed",
            cwd=layout.root,
            # Tests that run the real thing keep to the bases that were asked for.
            env=python_env(PATCHSET_BASES=" ".join(release.version for release in bases)),
            check=False,
        )
        log.write_bytes(done.stdout + done.stderr)
        report = read_file(report_log)
        progress.outcome = counts(report)
    gate.tests_passed, gate.tests_failed = len(report.passed), len(report.broken)
    gate.note = f"{report.count(Outcome.SKIPPED)} skipped" if report.count(Outcome.SKIPPED) else ""
    if report.broken or done.returncode:
        raise PatchsetError(
            "tests",
            f"{len(report.broken)} tests of the tooling fail",
            output=_ids(report.broken) or tail((done.stdout + done.stderr).decode("utf-8", "replace")),
            where=layout.show(log),
        )


def run_tooling(session: Session, layout: Layout, bases: Sequence[Release]) -> None:
    """Run the gates of the tooling itself."""
    bin_ = Path(sys.executable).parent
    for name, arguments in (
        ("ruff check", ("ruff", "check", "--no-fix", "--no-cache")),
        ("ruff format", ("ruff", "format", "--check", "--no-cache")),
        ("pyright", ("pyright",)),
    ):

        def check(gate: Gate, name: str = name, arguments: tuple[str, ...] = arguments) -> None:
            run(
                [bin_ / arguments[0], *arguments[1:]],
                step=name,
                what=f"{name} is not clean",
                cwd=layout.root,
                env=python_env(PYRIGHT_PYTHON_IGNORE_WARNINGS="1"),
            )

        session.gate("tooling", name, check)
    session.gate("tooling", "tests", lambda gate: tooling_tests(layout, bases, gate))


@click.command("test", short_help="Run every gate on the patched checkout.")
@base_option
@pass_layout
def command(layout: Layout, base: str) -> None:
    """Run upstream's gates on the patched checkout, the behaviour tests and the tests of the tooling."""
    bases = load(layout).resolve(base)
    check_python()
    session = Session()
    for release in bases:
        run_base(session, layout, release)
    run_tooling(session, layout, bases)
    sys.exit(session.finish("make test"))
