"""Loaded into the pytest of a base: runs exactly the tests it is told to, and notes contract marks in the report log.

It runs in the environment of the base and therefore knows nothing of the tooling.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names a JSON list of ids.

    Pytest itself runs nothing at all when one of several ids on its command line is not found.
    """
    parser.addoption("--only", metavar="FILE", help="run the tests, classes and files of this JSON list")
    parser.addoption("--lines", metavar="LINES", help="leave out tests about a contract line that is not one of these")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, for trees that do not."""
    config.addinivalue_line("markers", "contract(line): the contract line that the test is about")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what was not asked for, and note the contract lines of the rest."""
    left_out: list[pytest.Item] = []
    if file := config.getoption("--only"):
        wanted = set(json.loads(Path(file).read_text(encoding="utf-8")))
        left_out += [item for item in items if not names(item) & wanted]
    if lines := config.getoption("--lines"):
        left_out += [item for item in items if not contract(item) <= set(lines.split(","))]
    dropped = set(left_out)
    items[:] = [item for item in items if item not in dropped]
    config.hook.pytest_deselected(items=list(dropped))
    for item in items:
        item.user_properties.extend(("contract", line) for line in sorted(contract(item)))


def names(item: pytest.Item) -> set[str]:
    """Return the ids that ask for a test: its own, that without parameters, and those of its classes and its file."""
    parts = item.nodeid.partition("[")[0].split("::")
    return {item.nodeid, *("::".join(parts[:end]) for end in range(1, len(parts) + 1))}


def contract(item: pytest.Item) -> set[str]:
    """Return the contract lines that a test is about."""
    return {str(line) for mark in item.iter_markers("contract") for line in mark.args}
