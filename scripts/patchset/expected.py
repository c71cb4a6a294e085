"""Read `expected-changes.toml` of a line: how much a suite has to hold, and which of its tests are overruled."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

from patchset import tables
from patchset.errors import USAGE, PatchsetError
from patchset.paths import Layout

STEP = "expected changes"
FILE = "expected-changes.toml"
_KEYS = ("test", "contract", "why", "replaced_by")


@dataclass(frozen=True)
class Change:
    """An upstream test that passes without the patches and not with them, because a contract line says otherwise."""

    test: str
    contract: str
    why: str
    replaced_by: str


@dataclass(frozen=True)
class Expected:
    """What a line says about the suites that it is held against."""

    where: str
    minimum: dict[str, int]
    """By base: how many tests upstream's suite passes at least on the unpatched base."""
    changes: tuple[Change, ...]

    def minimum_of(self, version: str) -> int:
        """Return how many tests have to pass on the unpatched base `version`.

        Raises:
            PatchsetError: The file does not say.
        """
        if version not in self.minimum:
            raise PatchsetError(
                STEP,
                f"{FILE} has no minimum for {version}",
                where=self.where,
                next=f'say how many tests its suite passes unpatched: "{version}" = ... under [minimum]',
                exit_code=USAGE,
            )
        return self.minimum[version]


def load(layout: Layout, line: str, promised: Collection[str]) -> Expected:
    """Read the file of a line.

    Args:
        layout: Where things are.
        line: The line.
        promised: Contract lines that a base of the line promises; only those overrule a test.

    Raises:
        PatchsetError: The file is missing, or says something that it may not.
    """
    path = layout.series(line) / FILE
    where = layout.show(path)

    def wrong(what: str) -> PatchsetError:
        return PatchsetError(STEP, what, where=where, exit_code=USAGE)

    read = tables.read(layout, path, step=STEP)
    minimum: Any = read.pop("minimum", {})
    rows: Any = read.pop("change", [])
    tables_only = isinstance(rows, list) and all(isinstance(row, dict) for row in cast("list[Any]", rows))
    if read or not isinstance(minimum, dict) or not tables_only:
        raise wrong(f"{FILE} may have a [minimum] table and [[change]] rows, nothing else")
    for version, number in cast("dict[str, Any]", minimum).items():
        if type(number) is not int or number < 1:
            raise wrong(f"the minimum of {version} is not a number of tests")
    changes: list[Change] = []
    for number, row in enumerate(cast("list[dict[str, Any]]", rows), 1):
        if sorted(row) != sorted(_KEYS) or not all(isinstance(row[key], str) and row[key].strip() for key in _KEYS):
            raise wrong(f"change {number} needs {', '.join(_KEYS)}, each a text, and nothing else")
        change = Change(**row)
        if "::" not in change.test or "::" not in change.replaced_by:
            raise wrong(f"change {number}: test and replaced_by are ids of tests, as in tests/core/test_x.py::test_y")
        if change.contract not in promised:
            raise wrong(f"change {number}: {change.contract} is no contract line that a base of {line} promises")
        changes.append(change)
    return Expected(where, cast("dict[str, int]", minimum), tuple(changes))
