"""Run gates one after the other, whatever each says, and list what came of them at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from patchset import console
from patchset.errors import PatchsetError

_SHOWN = 25


def listed(found: Mapping[str, str]) -> list[str]:
    """Return ids with what is said of each, the first of them where there are many."""
    lines = [f"{name}: {reason}" if reason else name for name, reason in sorted(found.items())]
    return lines[:_SHOWN] + ([f"... and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else [])


@dataclass
class Gate:
    """What came of one gate."""

    base: str
    name: str
    failed: bool = False
    tests_passed: int = 0
    tests_failed: int = 0
    note: str = ""
    seconds: float = 0.0

    def cells(self) -> list[str]:
        """Return the row of the summary."""
        tests = (
            [f"{self.tests_passed:,}", f"{self.tests_failed:,}"] if self.tests_passed + self.tests_failed else ["", ""]
        )
        return [self.base, self.name, "FAILED" if self.failed else "ok", *tests, f"{self.seconds:.1f}", self.note]


@dataclass
class Session:
    """Every gate of one command, and what failed in them."""

    gates: list[Gate] = field(default_factory=list[Gate])
    errors: list[PatchsetError] = field(default_factory=list[PatchsetError])
    started: float = field(default_factory=time.monotonic)

    def gate(self, base: str, name: str, action: Callable[[Gate], None]) -> bool:
        """Run one gate, keep what it raises, and return whether it went well."""
        gate = Gate(base, name)
        self.gates.append(gate)
        started = time.monotonic()
        try:
            action(gate)
        except PatchsetError as error:
            gate.failed = True
            error.step = f"{base}: {name}" + ("" if error.step in name else f": {error.step}")
            self.errors.append(error)
        gate.seconds = time.monotonic() - started
        return not gate.failed

    def finish(self, command: str) -> int:
        """Print the summary of `command`, every failure and the number of tests, and return the exit status."""
        columns = ["base", "gate", "result", "passed", "failed", "seconds", ""]
        minutes, seconds = divmod(round(time.monotonic() - self.started), 60)
        console.table(f"{command}, {minutes} min {seconds} s", columns, [gate.cells() for gate in self.gates])
        for error in self.errors:
            console.say(error.render())
        passed = sum(gate.tests_passed for gate in self.gates)
        failed = sum(gate.tests_failed for gate in self.gates)
        console.say(f"{passed} passed, {failed} failed")
        return max((error.exit_code for error in self.errors), default=0)
