"""Hold `python/contract.toml` against the behaviour tests: what a base promises is tested, and none of it skipped."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable
from pathlib import PurePosixPath
from typing import Any, cast

from patchset import tables
from patchset.errors import USAGE, PatchsetError
from patchset.paths import Layout
from patchset.reports import Outcome, Report

STEP = "contract"
_CORE = PurePosixPath("packages/core")
_LINE = re.compile(r"[TC][1-9][0-9]?")


def promised(layout: Layout, version: str) -> frozenset[str]:
    """Return the contract lines that the base `version` promises.

    Raises:
        PatchsetError: `python/contract.toml` cannot be read, or does not speak of the base.
    """
    path = layout.behaviour / "contract.toml"
    bases: Any = tables.read(layout, path, step=STEP).get("base")
    row: Any = cast("dict[str, Any]", bases).get(version) if isinstance(bases, dict) else None
    lines: Any = cast("dict[str, Any]", row).get("lines") if isinstance(row, dict) else None
    if not isinstance(lines, list):
        raise PatchsetError(
            STEP,
            f"contract.toml does not say what {version} promises",
            where=layout.show(path),
            next=f'add [base."{version}"] with lines = ["T1", ...]',
            exit_code=USAGE,
        )
    for line in cast("list[Any]", lines):
        if not isinstance(line, str) or not _LINE.fullmatch(line):
            raise PatchsetError(STEP, f"{line!r} is no contract line", where=layout.show(path), exit_code=USAGE)
    return frozenset(cast("list[str]", lines))


def marked(layout: Layout, file: PurePosixPath) -> frozenset[str]:
    """Return the contract lines that a file of behaviour tests marks, read without importing it.

    Raises:
        PatchsetError: It is not Python.
    """
    try:
        parsed = ast.parse((layout.behaviour / file).read_bytes())
    except SyntaxError as error:
        raise PatchsetError(
            STEP, f"python/{file} is not Python: {error.msg}", where=f"python/{file}:{error.lineno}"
        ) from error
    calls = (node for node in ast.walk(parsed) if isinstance(node, ast.Call))
    marks = (call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "contract")
    values = (argument.value for mark in marks for argument in mark.args if isinstance(argument, ast.Constant))
    return frozenset(value for value in values if isinstance(value, str))


def test_files(layout: Layout, files: Iterable[PurePosixPath], lines: Collection[str]) -> list[str]:
    """Return those of the behaviour files with a test about one of `lines`, relative to the core package."""
    tests = [file for file in files if _is_test(file)]
    return [str(file.relative_to(_CORE)) for file in tests if marked(layout, file) & frozenset(lines)]


def unmarked_files(layout: Layout, files: Iterable[PurePosixPath]) -> list[str]:
    """Return what is wrong with behaviour files that are about no contract line at all."""
    tests = [file for file in files if _is_test(file)]
    return [f"python/{file} has no test with a contract line" for file in tests if not marked(layout, file)]


def _is_test(file: PurePosixPath) -> bool:
    return file.name.startswith("test_") and file.suffix == ".py"


def problems(version: str, lines: Collection[str], report: Report) -> list[str]:
    """Return how the run of the behaviour tests falls short of what a base promises.

    Args:
        version: The base.
        lines: The lines it promises.
        report: The run of the tests about these lines.
    """
    found = [f"{name} carries no contract line" for name, test in sorted(report.tests.items()) if not test.contract]
    for line in sorted(lines, key=sort_key):
        about = {name: test for name, test in report.tests.items() if line in test.contract}
        if not about:
            found.append(f"{line} is promised on {version} and has no test")
        for name, test in sorted(about.items()):
            if test.outcome in {Outcome.SKIPPED, Outcome.XFAILED, Outcome.XPASSED}:
                found.append(f"{name} is {test.outcome.value} where {line} is promised: {test.message}")
    found += [f"{name} skips itself as a whole: {reason}" for name, reason in sorted(report.left_out.items())]
    return found


def sort_key(line: str) -> tuple[str, int]:
    """Return what puts contract lines in their order."""
    return line[0], int(line[1:])


def listed(lines: Collection[str]) -> str:
    """Return contract lines in their order, as a text."""
    return ", ".join(sorted(lines, key=sort_key))
