"""Read what pytest reported: the outcome of every test by its id, from the report log."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, cast

from patchset.errors import PatchsetError

STEP = "tests"


class Outcome(Enum):
    """How one test ended."""

    PASSED = "passed"
    FAILED = "failed"
    """In its call phase."""
    ERROR = "error"
    """In its setup or teardown: what it is about was not tried, or not cleaned up."""
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"


@dataclass
class Result:
    """One test that was collected and run."""

    outcome: Outcome
    message: str = ""
    """The line that says what was raised, or why it was skipped."""
    contract: tuple[str, ...] = ()


@dataclass
class Report:
    """A whole run of pytest."""

    tests: dict[str, Result] = field(default_factory=dict[str, Result])
    uncollected: dict[str, str] = field(default_factory=dict[str, str])
    """Files that could not be imported, with what was raised."""
    left_out: dict[str, str] = field(default_factory=dict[str, str])
    """Files that skipped themselves as a whole, with the reason."""

    def ids(self, *outcomes: Outcome) -> frozenset[str]:
        """Return the ids of the tests that ended in one of `outcomes`."""
        return frozenset(name for name, test in self.tests.items() if test.outcome in outcomes)

    @property
    def passed(self) -> frozenset[str]:
        return self.ids(Outcome.PASSED)

    @property
    def broken(self) -> dict[str, str]:
        """What is no success and no skip: tests and files by id, with what was raised."""
        found = {name: self.tests[name].message for name in self.ids(Outcome.FAILED, Outcome.ERROR, Outcome.XPASSED)}
        return found | self.uncollected

    def count(self, outcome: Outcome) -> int:
        return Counter(test.outcome for test in self.tests.values())[outcome]

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values, to be kept."""
        return {
            "tests": {
                name: [test.outcome.value, test.message, list(test.contract)] for name, test in self.tests.items()
            },
            "uncollected": self.uncollected,
            "left_out": self.left_out,
        }

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> Report:
        """Return what `to_json` kept."""
        tests = {
            name: Result(Outcome(outcome), message, tuple(contract))
            for name, (outcome, message, contract) in kept["tests"].items()
        }
        return cls(tests, kept["uncollected"], kept["left_out"])


def _message(longrepr: Any) -> str:
    """Return the line that matters of what pytest shows of a failure or a skip."""
    shown: Any = longrepr
    if isinstance(longrepr, dict):
        parts = cast("dict[str, Any]", longrepr)
        crash = cast("dict[str, Any]", parts.get("reprcrash") or {})
        shown = crash.get("message") or parts.get("longrepr")
    elif isinstance(longrepr, list):  # file, line, reason of a skip
        shown = cast("list[Any]", longrepr)[-1]
    lines = [line for line in str(shown or "").splitlines() if line.strip()]
    # A file that cannot be imported has no crash line; what was raised comes last.
    raised = [line for line in lines if line.startswith("E   ")]
    return (raised[-1].removeprefix("E").strip() if raised else lines[0] if lines else "")[:300]


def read(lines: Iterable[str]) -> Report:
    """Return the report that the lines of a report log make."""
    report = Report()
    for line in lines:
        entry = json.loads(line)
        kind, outcome = entry.get("$report_type"), entry.get("outcome")
        if kind == "CollectReport":
            if outcome == "failed":
                report.uncollected[entry["nodeid"]] = _message(entry["longrepr"])
            elif outcome == "skipped":
                report.left_out[entry["nodeid"]] = _message(entry["longrepr"])
        elif kind == "TestReport":
            _add(report, entry)
    return report


def _add(report: Report, entry: dict[str, Any]) -> None:
    name, when, outcome, message = entry["nodeid"], entry["when"], entry["outcome"], _message(entry["longrepr"])
    contract = tuple(value for key, value in entry["user_properties"] if key == "contract")
    expected_to_fail = "wasxfail" in entry
    if outcome == "skipped":
        ended = Outcome.XFAILED if expected_to_fail else Outcome.SKIPPED
    elif outcome == "failed":
        ended = Outcome.FAILED if when == "call" else Outcome.ERROR
    elif outcome == "passed" and when == "call":
        ended = Outcome.XPASSED if expected_to_fail else Outcome.PASSED
    else:  # a setup or teardown that passed says nothing; an attempt that is retried is followed by another
        return
    if when == "teardown" and name in report.tests and report.tests[name].outcome is Outcome.FAILED:
        return  # what failed first is what the test says
    report.tests[name] = Result(ended, message, contract)


def read_file(path: Path, *, where: str, status: int, printed: str) -> Report:
    """Return the report of a finished run.

    Args:
        path: The report log.

    Keyword Args:
        where: The file that keeps what pytest printed.
        status: The status that pytest left with.
        printed: The end of what it printed.

    Raises:
        PatchsetError: The log is missing or was cut off: pytest did not come to its end.
    """
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    if not lines or "SessionFinish" not in lines[-1]:
        raise PatchsetError(
            STEP,
            f"pytest did not come to its end, it left with status {status}",
            where=where,
            state="a signal ended it, as it does when memory runs out" if status < 0 else None,
            next=f"read {where}, then the same command again",
            output=printed,
        )
    return read(lines)
