"""The environment of the tools: what is told before anything is made, and when it is made anew."""

from __future__ import annotations

import ast
import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from patchset.paths import Layout

ROOT = Layout.discover().root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with nothing but what the environment is made from, and a lock with one small package."""
    root = tmp_path / "project"
    (root / "requirements").mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", root)
    shutil.copytree(ROOT / "scripts", root / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    lock(root, "1.0")
    return root


def lock(root: Path, version: str) -> None:
    """Publish a version of the package and lock it."""
    name = f"small_tool-{version}"
    files = {
        "small_tool.py": f"VERSION = {version!r}\n",
        f"{name}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: small-tool\nVersion: {version}\n",
        f"{name}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{name}.dist-info/RECORD"
    lines = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},{len(text)}"
        for path, text in files.items()
    ]
    files[record] = "\n".join([*lines, f"{record},,"]) + "\n"
    published = root / "published"
    published.mkdir(exist_ok=True)
    wheel = published / f"{name}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (root / "requirements/tools.txt").write_text(f"small-tool=={version} \\\n    --hash=sha256:{digest}\n")


def make(root: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run make as a person does, with pip's index at the published packages."""
    user = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "MAKE"))}
    user |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(root / "published")}
    arguments = ("make", "--no-print-directory", *arguments)
    return subprocess.run(arguments, cwd=root, env=user | env, capture_output=True, text=True, check=False)


def installed(root: Path) -> str:
    """Return the version of the package in the environment of the tools."""
    command = [root / "build/tools/bin/python", "-c", "import small_tool; print(small_tool.VERSION)"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def test_the_environment_is_made_once_and_again_when_its_lock_changes(root: Path, tmp_path: Path) -> None:
    """Neither pip's other settings nor Python's variables have a say in it."""
    (tmp_path / "shadow").mkdir()
    (tmp_path / "shadow" / "venv.py").write_text("raise SystemExit('shadowed')\n")
    hostile = {
        "PIP_TARGET": str(tmp_path / "elsewhere"),
        "PIP_USER": "1",
        "PIP_NO_BINARY": ":all:",
        "PIP_CONSTRAINT": str(tmp_path / "missing.txt"),
        "PIP_DRY_RUN": "1",
        "PYTHONPATH": str(tmp_path / "shadow"),
        "PYTHONHOME": str(tmp_path),
    }
    done = make(root, "tools", f"PYTHON={sys.executable}", **hostile)
    assert done.returncode == 0, done.stderr
    assert "tools: installing requirements/tools.txt into build/tools" in done.stderr
    assert installed(root) == "1.0"
    assert not (tmp_path / "elsewhere").exists()
    made = (root / "build/tools/pyvenv.cfg").stat().st_mtime_ns
    # Without an index: there is nothing to do.
    done = make(root, "tools", f"PYTHON={sys.executable}", PIP_FIND_LINKS="/missing")
    assert (done.returncode, done.stderr) == (0, "")
    assert (root / "build/tools/pyvenv.cfg").stat().st_mtime_ns == made
    lock(root, "2.0")
    assert make(root, "tools", f"PYTHON={sys.executable}").returncode == 0
    assert installed(root) == "2.0"


def test_what_cannot_be_installed_is_told_and_not_taken_for_done(root: Path) -> None:
    done = make(root, "tools", f"PYTHON={sys.executable}", PIP_FIND_LINKS=str(root / "elsewhere"))
    assert done.returncode == 2, "make's own status of a failed command"
    assert "tools: pip could not install the tools; the network or the package index may be out of reach" in done.stderr
    assert "next:  check the network (or pip's index settings) and run the command again" in done.stderr
    assert "Error 1" in done.stderr
    text = (root / "requirements/tools.txt").read_text()
    (root / "requirements/tools.txt").write_text(text[:-3] + ("00\n" if text[-3:] != "00\n" else "11\n"))
    done = make(root, "tools", f"PYTHON={sys.executable}")
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert "Error 1" in done.stderr
    assert installed(root) == ""


def test_a_python_that_is_too_old(root: Path, tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text(
        f"#!/bin/sh\nexec '{sys.executable}' -c \"import runpy, sys; sys.version_info = (3, 9, 1, 'final', 0)\n"
        'sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name=\'__main__\')" "$@"\n'
    )
    old.chmod(0o755)
    done = make(root, "apply", f"PYTHON={old}")
    assert "tools: Python 3.9 is too old, 3.10 or newer is needed" in done.stderr
    assert "next:  make PYTHON=python3.11 and the same command, with a newer Python" in done.stderr
    assert "Error 2" in done.stderr
    assert not (root / "build").exists()


def test_a_python_that_is_not_there(root: Path) -> None:
    done = make(root, "apply", "PYTHON=/missing/python3")
    assert "tools: /missing/python3 is not installed" in done.stderr
    assert "next:  install Python 3.11 or newer" in done.stderr
    assert not (root / "build").exists()


def test_git_that_is_not_there(root: Path, tmp_path: Path) -> None:
    for name in ("sh", "env", "make"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    done = make(root, "apply", f"PYTHON={sys.executable}", PATH=str(tmp_path / "bin"))
    assert "tools: git is not installed" in done.stderr
    assert not (root / "build").exists()


def test_the_file_is_readable_for_a_python_that_it_turns_away() -> None:
    ast.parse((ROOT / "scripts/bootstrap.py").read_text(), feature_version=(3, 4))


def test_help_lists_every_command_without_making_anything(root: Path) -> None:
    done = make(root, "help")
    assert done.returncode == 0
    targets = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("  make ")}
    phony = [line.split()[1] for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith(".PHONY: ")]
    assert targets == set(phony)
    assert not (root / "build").exists()
