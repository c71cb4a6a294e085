"""A small upstream whose core has settings, types and tests, to run real gates on, in the environment of the tools."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from patchset import behaviour, net, prepared
from patchset.envs import Env
from patchset.paths import Layout
from patchset.releases import Release
from support import Change, Project

COPYRIGHT = "# Copyright (c) Microsoft. All rights reserved.\n"
ANSWER = "agent_framework/_answer.py"


def answer(value: object, extra: str = "") -> bytes:
    """Return the module that the tests are about."""
    function = f'def answer() -> int:\n    """Return the answer."""\n    return {value}\n'
    return f'{COPYRIGHT}\n"""Answers."""\n\n\n{function}{extra}'.encode()


CORE = {
    "pyproject.toml": b'[project]\nname = "agent-framework-core"\nversion = "1.0.0"\ndescription = "Core."\n'
    b'requires-python = ">=3.10"\nlicense-files = ["LICENSE"]\ndependencies = []\n\n'
    b'[tool.ruff]\nextend = "../../pyproject.toml"\n\n'
    b'[tool.pyright]\nextends = "../../pyproject.toml"\ninclude = ["agent_framework"]\n\n'
    b'[tool.pytest.ini_options]\ntestpaths = ["tests"]\naddopts = "-ra -q"\n\n'
    b'[build-system]\nrequires = ["flit-core"]\nbuild-backend = "flit_core.buildapi"\n\n'
    b'[tool.flit.module]\nname = "agent_framework"\n',
    "PKG-INFO": b"Metadata-Version: 2.4\nName: agent-framework-core\nVersion: 1.0.0\nSummary: Core.\n"
    b"Requires-Python: >=3.10\nLicense-File: LICENSE\n",
    "agent_framework/__init__.py": f'{COPYRIGHT}\n"""Core."""\n\nfrom ._answer import answer\n\n'
    '__all__ = ["answer"]\n'.encode(),
    "agent_framework/py.typed": b"",
    "agent_framework/_agents.py": f'{COPYRIGHT}\n"""Agents."""\n'.encode(),
    "agent_framework/_crlf.py": f'{COPYRIGHT}\n"""Nothing."""\n'.encode(),
    "agent_framework/_open_end.py": f'{COPYRIGHT}\n"""Nothing."""\n'.encode(),
    ANSWER: answer(41),
}

UPSTREAM = f"""{COPYRIGHT}
import os

import pytest

from agent_framework import answer


def test_is_a_number() -> None:
    assert isinstance(answer(), int)


def test_is_not_too_much() -> None:
    assert answer() < 100


@pytest.mark.parametrize("divisor", [1, 41])
def test_divides(divisor: int) -> None:
    assert answer() % divisor == 0


def test_fails_unpatched() -> None:
    assert answer() == -1


def test_sees_no_keys_of_the_user() -> None:
    assert "OPENAI_API_KEY" not in os.environ


@pytest.mark.integration
def test_calls_a_service() -> None:
    raise AssertionError("must not be run")


@pytest.mark.skip(reason="never")
def test_is_skipped() -> None:
    pass
"""

WORKSPACE = {
    "pyproject.toml": b'[project]\nname = "agent-framework"\nversion = "1.0.0"\ndescription = "x"\n\n'
    b"[tool.ruff]\nline-length = 120\nfix = true\npreview = true\n\n"
    b'[tool.ruff.lint]\nselect = ["CPY", "D", "F", "I"]\n\n'
    b'[tool.ruff.lint.per-file-ignores]\n"**/tests/**" = ["D"]\n\n'
    b'[tool.ruff.lint.pydocstyle]\nconvention = "google"\n\n'
    b"[tool.ruff.lint.flake8-copyright]\n"
    b'notice-rgx = "^# Copyright \\\\(c\\\\) Microsoft\\\\. All rights reserved\\\\."\n\n'
    b'[tool.pyright]\ntypeCheckingMode = "strict"\n\n'
    b'[build-system]\nrequires = ["flit-core"]\nbuild-backend = "flit_core.buildapi"\n\n'
    b'[tool.flit.module]\nname = "agent_framework_meta"\n',
    "packages/core/tests/__init__.py": COPYRIGHT.encode(),
    "packages/core/tests/core/__init__.py": COPYRIGHT.encode(),
    "packages/core/tests/core/test_upstream.py": UPSTREAM.encode(),
}

BEHAVIOUR = f"""{COPYRIGHT}
import pytest

from agent_framework import answer


@pytest.mark.contract("T1")
def test_is_the_answer() -> None:
    assert answer() == 42


@pytest.mark.contract("T2")
@pytest.mark.parametrize("other", [41, 43])
def test_is_no_other(other: int) -> None:
    assert answer() != other
"""

TEST = "tests/core/test_answer.py"

FIX = Change(
    "Python: Give the right answer",
    {ANSWER: answer(42)},
    why="The answer is wrong.",
    tests=f"{TEST}::test_is_the_answer {TEST}::test_is_no_other",
)


class GatedProject(Project):
    """A project that serves 1.0.0 with upstream's tests; its gates run in the environment of the tools."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(root, capsys)
        self.release("1.0.0", line="1.0", core=CORE, workspace=WORKSPACE)
        env = Env(Path(sys.prefix), "the environment of the tools")

        def tools(layout: Layout, release: Release) -> Env:
            return env

        monkeypatch.setattr(prepared, "ensure_env", tools)
        for module in (net, behaviour):  # the suites are so small that processes cost more than they save
            monkeypatch.setattr(module, "workers", int)
        self.env = env
        self.contract("T1", "T2")
        self.expected('minimum = { "1.0.0" = 4 }\n')
        self.behaviour({TEST: BEHAVIOUR})

    def patches(self, *changes: Change) -> None:
        """Write the series."""
        self.series(*changes, on=CORE)

    def contract(self, *lines: str) -> None:
        """Write what 1.0.0 promises."""
        promised = ", ".join(f'"{line}"' for line in lines)
        self.layout.behaviour.mkdir(exist_ok=True)
        (self.layout.behaviour / "contract.toml").write_text(f'[base."1.0.0"]\nlines = [{promised}]\n')

    def expected(self, text: str) -> None:
        """Write what is expected of upstream's suite."""
        self.layout.series("1.0").mkdir(exist_ok=True)
        (self.layout.series("1.0") / "expected-changes.toml").write_text(text)

    def behaviour(self, files: Mapping[str, str]) -> None:
        """Write behaviour tests, by their path below the core package."""
        for name, text in files.items():
            path = self.layout.behaviour / "packages/core" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
