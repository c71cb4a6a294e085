"""Fixtures of the tests of the tooling."""

from __future__ import annotations

from pathlib import Path

import pytest

from gated import GatedProject
from support import Project


@pytest.fixture
def project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Project:
    """A project that serves 1.0.0 from its cache, with an empty series."""
    root = tmp_path / "project"
    root.mkdir()
    return Project(root, capsys)


@pytest.fixture
def gated(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> GatedProject:
    """A project whose 1.0.0 has settings, types and upstream's tests, with an empty series."""
    root = tmp_path / "project"
    root.mkdir()
    return GatedProject(root, capsys, monkeypatch)
