"""Judge a suite: what passes on the unpatched base passes on the patched one, unless a contract line overrules it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from patchset.expected import Expected
from patchset.reports import Report
from patchset.suites import covers

_FEW = 100


@dataclass(frozen=True)
class Verdict:
    """What came of comparing two runs of one suite."""

    lost: dict[str, str]
    """Tests that the patches break, with what is raised now."""
    overruled: frozenset[str]
    """Tests that no longer pass, as expected."""
    unstable: frozenset[str]
    """Tests that did not pass in the patched run, and that say nothing: alone, they pass patched or fail unpatched."""
    problems: tuple[str, ...]
    """What is wrong with the suite or with what is expected of it."""

    @property
    def ok(self) -> bool:
        return not self.lost and not self.problems


def judge(
    stock: Report,
    patched: Report,
    expected: Expected,
    version: str,
    rerun: Callable[[frozenset[str]], tuple[Report, Report]],
) -> Verdict:
    """Compare a suite's run on the unpatched base with its run on the patched one.

    Args:
        stock: The run on the unpatched base.
        patched: The run on the patched base.
        expected: What the line says.
        version: The base.
        rerun: Runs some tests alone, once on the unpatched base and once on the patched one.

    Returns:
        The verdict.
    """
    problems: list[str] = []
    minimum = expected.minimum_of(version)
    if len(stock.passed) < minimum:
        problems.append(
            f"only {len(stock.passed):,} tests pass on the unpatched base, {minimum:,} are the minimum: "
            "the suite or the environment has shrunk"
        )
    missing = stock.passed - patched.passed
    overruled: set[str] = set()
    for change in expected.changes:
        changed = {name for name in missing if covers(change.test, name)}
        if not changed:
            problems.append(f"{change.test} still passes, or never did: its row is to be removed")
        overruled |= changed
    candidates = frozenset(missing - overruled)
    if not candidates:
        return Verdict({}, frozenset(overruled), frozenset(), tuple(problems))
    # Chance breaks a few tests, not many.
    alone_stock, alone_patched = rerun(candidates) if len(candidates) <= _FEW else (stock, patched)
    lost = {
        name: _reason(name, patched, alone_patched) for name in candidates & alone_stock.passed - alone_patched.passed
    }
    return Verdict(lost, frozenset(overruled), candidates - lost.keys(), tuple(problems))


def _reason(name: str, *runs: Report) -> str:
    for run in runs:
        if name in run.tests:
            test = run.tests[name]
            return f"{test.outcome.value}: {test.message}"
        file = name.partition("::")[0]
        if file in run.uncollected:
            return f"not importable: {run.uncollected[file]}"
    return "not collected"
