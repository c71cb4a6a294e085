"""`make dependents` on a small upstream: packages that build on core, installed next to the wheel by pip and by uv."""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from gated import CORE, FIX, GatedProject, answer
from patchset import dependents, installed, siblings
from patchset.envs import Env
from patchset.paths import Layout
from patchset.releases import load
from support import Change, sha256
from test_fetch import no_index as no_index  # the fixture
from test_gates import summary

MODULE = "from agent_framework import answer\nfrom agent_framework._answer import _half\n\nHALF = _half(number=4)\n"
HALF = "\n\ndef _half(number: int) -> int:\n    return number // 2\n"


def make_wheel(folder: Path, name: str, version: str, requires: tuple[str, ...], files: Mapping[str, str]) -> Path:
    info = f"{name}-{version}.dist-info"
    lines = "".join(f"Requires-Dist: {other}\n" for other in requires)
    texts = dict(files) | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n{lines}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {
        path: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        for path, text in texts.items()
    }
    record = [f"{path},sha256={digest},{len(texts[path].encode())}" for path, digest in digests.items()]
    texts[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, text in texts.items():
            wheel.writestr(member, text)
    return path


class Family:
    """A base whose only dependent is `agent-framework-extra`, which an index in a folder has."""

    def __init__(self, project: GatedProject, monkeypatch: pytest.MonkeyPatch) -> None:
        self.project = project
        self.index = project.layout.root / "index"
        self.core = "agent-framework-core>=1.0.0,<2"
        self.module = MODULE
        project.layout.requirements.mkdir()
        core = CORE | {"agent_framework/_answer.py": answer(41, HALF)}
        project.release("1.0.0", line="1.0", core=core)
        project.series(Change(FIX.subject, {"agent_framework/_answer.py": answer(42, HALF)}), on=core)
        site = project.layout.root / "site"

        def tools(layout: Layout, name: str) -> Env:
            assert name == "dependents-1.0.0"
            return project.env

        def with_extra(env: Env) -> Path:
            (site / "agent_framework_extra").mkdir(parents=True, exist_ok=True)
            (site / "agent_framework_extra/__init__.py").write_text(self.module)
            return site

        monkeypatch.setattr(siblings, "ensure_named", tools)
        monkeypatch.setattr(dependents, "site_of", with_extra)
        # The folder is all that the installers know of.
        settings = project.layout.root / "uv.toml"
        settings.write_text(f'no-index = true\nfind-links = ["{self.index}"]\n')
        for name in [name for name in os.environ if name.startswith("UV_")]:
            monkeypatch.delenv(name)
        for name, value in (
            ("PIP_NO_INDEX", "1"),
            ("PIP_FIND_LINKS", str(self.index)),
            ("UV_CONFIG_FILE", str(settings)),
        ):
            monkeypatch.setenv(name, value)
        # A plain core that an installer could take instead of the wheel.
        make_wheel(self.index, "agent_framework_core", "1.5.0", (), {"agent_framework/__init__.py": "answer = None\n"})

    def run(self) -> tuple[int, str]:
        """Publish the dependent, lock it, and run the command."""
        files = {"agent_framework_extra/__init__.py": self.module}
        extra = make_wheel(self.index, "agent_framework_extra", "2.0.0", (self.core, "leaf>=1"), files)
        leaf = make_wheel(self.index, "leaf", "1.0", (), {"leaf/__init__.py": ""})
        lock = "".join(
            f"{name} \\\n    --hash=sha256:{sha256(wheel)}\n"
            for name, wheel in (("agent-framework-extra==2.0.0", extra), ("leaf==1.0", leaf))
        )
        (self.project.layout.requirements / "dependents-1.0.0.txt").write_text(lock)
        outcome = self.project.run("dependents")
        return outcome.code, outcome.out


@pytest.fixture
def family(gated: GatedProject, monkeypatch: pytest.MonkeyPatch) -> Family:
    return Family(gated, monkeypatch)


def test_dependents_install_next_to_the_wheel_and_get_on_with_it(family: Family) -> None:
    code, out = family.run()

    assert code == 0, out
    assert {gate: row[0] for gate, row in summary(out).items()} == {
        "environment": "ok",
        "private names": "ok",
        "wheel": "ok",
        "installed by pip": "ok",
        "installed by uv": "ok",
    }
    assert "1 name in 1 package" in out
    assert "1 package next to 1.0.0+turnscope.1" in out
    assert list(family.project.layout.work.iterdir()) == []


def test_a_dependent_that_replaces_the_wheel_is_told(family: Family) -> None:
    family.core = "agent-framework-core>=1.5,<2"

    code, out = family.run()

    assert code == 1
    results = summary(out)
    assert results["installed by pip"][0] == results["installed by uv"][0] == "FAILED"
    # The one refuses what has no hash, the other takes it.
    assert "pip does not install them" in out
    assert "agent-framework-core is 1.5.0, not 1.0.0+turnscope.1" in out


def test_a_dependent_that_cannot_be_imported_is_told(family: Family) -> None:
    family.module += "\nfrom agent_framework import absent\n"

    code, out = family.run()

    assert code == 1
    assert "agent_framework_extra cannot be imported: ImportError: cannot import name 'absent'" in out
    assert summary(out)["installed by uv"][0] == "FAILED"


def test_a_private_name_that_goes_is_told_with_its_user(family: Family) -> None:
    core = CORE | {"agent_framework/_answer.py": answer(41, HALF)}
    renamed = answer(42, HALF.replace("number", "whole"))
    family.project.series(Change(FIX.subject, {"agent_framework/_answer.py": renamed}), on=core)

    code, out = family.run()

    assert code == 1
    assert summary(out)["private names"][0] == "FAILED"
    assert "agent_framework_extra: _answer._half takes other positional arguments; used in" in out


def test_a_scan_that_finds_nothing_is_no_success(family: Family) -> None:
    family.module = "import agent_framework\n"

    code, out = family.run()

    assert code == 1
    assert "the scan finds nothing" in out


def test_the_locks_of_the_project_have_every_dependent() -> None:
    layout = Layout.discover()
    wanted = {"a2a", "ag-ui", "azure-cosmos", "foundry", "github-copilot", "openai", "orchestrations", "redis"}
    for release in load(layout).served:
        lock = layout.requirements / f"dependents-{release.version}.txt"
        named = {name for name in installed.projects(lock) if dependents.is_dependent(name)}
        assert named == {f"agent-framework-{name}" for name in wanted}
