"""`make test`: upstream's own gates on the patched checkout, the behaviour tests, and the tests of the tooling.

Every gate runs whatever the others say; what failed is listed together at the end.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from patchset import behaviour, checks, console, contract, expected, net
from patchset.compare import Verdict, judge
from patchset.envs import check_python
from patchset.errors import PatchsetError
from patchset.expected import Expected
from patchset.options import base_option, pass_layout
from patchset.paths import CORE, Layout
from patchset.prepared import Base, prepare
from patchset.proc import Git, python_env, run, tail
from patchset.releases import Release, load
from patchset.reports import Outcome, Report, read_file
from patchset.suites import contains, counts, covers, slug, tree, workers
from patchset.summary import Gate, Session, listed

STEP = "test"

_PACKAGE = "packages/core/"


def _again(base: Base, broken: Mapping[str, str]) -> str:
    """Return the command that runs one of the broken tests, unpatched and patched."""
    return f"make test BASE={base.name} TESTS={min(broken).partition('[')[0]}"


def wanted(base: Base) -> Expected:
    """Return what the line of a base says about the suites that it is held against."""
    return expected.load(base.layout, base.line, base.lines_of_line)


def upstream_suite(base: Base, gate: Gate) -> Verdict:
    """Run upstream's suite, unpatched and patched, and compare what passes.

    Raises:
        PatchsetError: The patches break a test that the contract does not overrule.
    """
    stock = net.run_stock(base)
    title = f"{base.name}: upstream's suite, patched"
    patched = net.run_suite(base, base.patched, title)
    verdict = judge(stock, patched, wanted(base), base.name, lambda missing: net.run_again(base, missing))
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
            output="\n".join([*listed(verdict.lost), *verdict.problems]),
            where=f"build/logs/{slug(title)}.log",
            next=f"{_again(base, verdict.lost)}\n"
            f"then mend the patch; or, where a contract line overrules the test, say so in {wanted(base).where}",
        )
    if verdict.problems:
        raise PatchsetError(
            "suite", "the suite is not what it should be", output="\n".join(verdict.problems), where=wanted(base).where
        )
    return verdict


def behaviour_tests(base: Base, gate: Gate) -> Report:
    """Run the behaviour tests about what the base promises.

    Raises:
        PatchsetError: A test fails, a promise has no test, or a promised one is skipped.
    """
    title = f"{base.name}: behaviour tests"
    report = behaviour.run(base, title)
    gate.tests_passed, gate.tests_failed = len(report.passed), len(report.broken)
    gate.note = contract.listed(base.lines)
    problems = contract.problems(base.name, base.lines, report)
    problems += contract.unmarked_files(base.layout, behaviour.files(base.layout))
    replacing = {change.replaced_by for change in wanted(base).changes}
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
            output="\n".join([*listed(report.broken), *problems]),
            where=f"build/logs/{slug(title)}.log",
            next=_again(base, report.broken) if report.broken else None,
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
        try:
            checks.ruff_check(base.env, made.package, files)
            checks.ruff_format(base.env, made.package, files)
        except PatchsetError as error:
            error.where, error.next = "python/packages/core", None  # the tree is gone when this is read
            raise


def run_base(session: Session, layout: Layout, release: Release) -> None:
    """Run the gates of one base."""
    name = release.version
    ready: list[Base] = []

    def get_ready(gate: Gate) -> None:
        base = prepare(layout, release)
        wanted(base).minimum_of(name)  # told now, and not when a suite has been run
        ready.append(base)

    if not session.gate(name, "apply", get_ready):
        return
    (base,) = ready
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
    with tempfile.TemporaryDirectory() as folder, console.step("tooling: tests") as progress:
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
        printed = tail((done.stdout + done.stderr).decode("utf-8", "replace"))
        report = read_file(report_log, where=layout.show(log), status=done.returncode, printed=printed)
        progress.outcome = counts(report)
    gate.tests_passed, gate.tests_failed = len(report.passed), len(report.broken)
    gate.note = f"{report.count(Outcome.SKIPPED)} skipped" if report.count(Outcome.SKIPPED) else ""
    if report.broken or done.returncode:
        raise PatchsetError(
            "tests",
            f"{len(report.broken)} tests of the tooling fail",
            output="\n".join(listed(report.broken)) or printed,
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
            with console.step(f"tooling: {name}"):
                run(
                    [bin_ / arguments[0], *arguments[1:]],
                    step=name,
                    what=f"{name} is not clean",
                    cwd=layout.root,
                    env=python_env(PYRIGHT_PYTHON_IGNORE_WARNINGS="1"),
                )

        session.gate("tooling", name, check)
    session.gate("tooling", "tests", lambda gate: tooling_tests(layout, bases, gate))


def named_tests(session: Session, base: Base, tests: Sequence[str]) -> None:
    """Run some tests alone, unpatched and patched, and show what each does.

    Args:
        session: Where the outcome is noted.
        base: The base.
        tests: Ids of tests, of classes or of files, as pytest takes them in the core package.
    """
    tests = [test.removeprefix("python/").removeprefix(_PACKAGE) for test in tests]
    named = tests[0] if len(tests) == 1 else f"{tests[0]} and {len(tests) - 1} more"
    reports: list[Report] = []
    for kind, commit in (("unpatched", base.applied.base), ("patched", base.applied.commit)):
        with console.step(f"{base.name}: {named}, {kind}") as progress:
            reports.append(behaviour.run_named(base, commit, tests, slug(f"{base.name} named {kind}")))
            progress.outcome = counts(reports[-1])
    stock, patched = reports
    names = sorted(_names(stock) | _names(patched))
    rows = [[name, _ended(stock, name), _ended(patched, name)] for name in names]
    console.table(f"{base.name}, alone", ["test", "unpatched", "patched"], rows)

    def judge_named(gate: Gate) -> None:
        gate.tests_passed, gate.tests_failed = len(patched.passed), len(patched.broken)
        absent = [test for test in tests if not any(contains(test, name) for name in _names(patched))]
        if patched.broken or absent:
            raise PatchsetError(
                "named tests",
                f"{len(patched.broken)} tests fail on the patched core, {len(absent)} were not found",
                output="\n".join(listed(patched.broken | dict.fromkeys(absent, "not found"))),
                where=f"build/logs/{slug(f'{base.name} named patched')}.log",
            )

    session.gate(base.name, "named tests", judge_named)


def _names(report: Report) -> set[str]:
    return report.tests.keys() | report.uncollected.keys() | report.left_out.keys()


def _ended(report: Report, name: str) -> str:
    if name in report.tests:
        return report.tests[name].outcome.value
    if name in report.uncollected:
        return "not importable"
    return "left out" if name in report.left_out else "not found"


@click.command("test", short_help="Run every gate on the patched checkout.")
@base_option
@click.option(
    "--tests",
    default="",
    help="Ids of tests, classes or files: run them alone, unpatched and patched, and nothing else.",
)
@pass_layout
def command(layout: Layout, base: str, tests: str) -> None:
    """Run upstream's gates on the patched checkout, the behaviour tests and the tests of the tooling."""
    bases = load(layout).resolve(base)
    check_python()
    session = Session()
    named = tests.split()
    for release in bases:
        if named:
            named_tests(session, prepare(layout, release), named)
        else:
            run_base(session, layout, release)
    if not named:
        run_tooling(session, layout, bases)
    sys.exit(session.finish("make test"))
