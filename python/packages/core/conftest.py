# Copyright (c) Microsoft. All rights reserved.

"""Registers the marker of the turn contract for the whole package, next to the markers of ``pyproject.toml``."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    config.addinivalue_line(
        "markers", "contract(line): the line of the turn contract that the test is about, for example T4"
    )
