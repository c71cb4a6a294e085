"""A hostile configuration of uv, in the user's folder, around the project and in the checkout, changes nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from patchset.envs import ensure_named
from support import FIRST, Project
from test_lock import index as index  # the fixture
from test_lock import write_requirements

EVERYTHING_ELSE = """
exclude-newer = "2001-01-01"
prerelease = "allow"
resolution = "lowest"
required-version = "==0.0.1"
python-preference = "only-managed"
link-mode = "symlink"
constraint-dependencies = ["leaf<2"]
override-dependencies = ["leaf==1.0"]
"""
OF_PIP = """
no-deps = true
generate-hashes = false
no-emit-package = ["leaf"]
target = "/nonexistent/target"
prefix = "/nonexistent/prefix"
python-version = "3.6"
require-hashes = true
reinstall = true
"""
VARIABLES = {
    "UV_EXCLUDE_NEWER": "2001-01-01",
    "UV_CONSTRAINT": "/nonexistent/constraints.txt",
    "UV_OVERRIDE": "/nonexistent/overrides.txt",
    "UV_BUILD_CONSTRAINT": "/nonexistent/build.txt",
    "UV_RESOLUTION": "lowest",
    "UV_PRERELEASE": "allow",
    "UV_REQUIRE_HASHES": "1",
    "UV_PYTHON": "3.6",
    "UV_PROJECT": "/nonexistent/project",
    "UV_WORKING_DIR": "/nonexistent",
    "UV_NO_BINARY": "1",
    "UV_NO_BUILD": "1",
    "UV_SYSTEM_PYTHON": "1",
    "UV_BREAK_SYSTEM_PACKAGES": "1",
    "UV_LINK_MODE": "symlink",
    "UV_CUSTOM_COMPILE_COMMAND": "mine",
    "UV_TORCH_BACKEND": "cpu",
    "UV_ENV_FILE": "/nonexistent/.env",
    "VIRTUAL_ENV": "/nonexistent/venv",
}


def made(project: Project) -> dict[str, object]:
    """Return all that uv has a hand in: a lock, and what is installed from it."""
    path = write_requirements(project, "1.0.0", "branch\nleaf\n")
    project.good("lock", "--base", "1.0.0")
    env = ensure_named(project.layout, "1.0.0")
    (site,) = env.root.glob("lib/python3*/site-packages")
    found: dict[str, object] = {
        "lock": path.read_text(),
        "python": env.python.resolve(),
        "installed": {str(file.relative_to(site)): file.is_symlink() for file in site.glob("[bl]*/*")},
    }
    shutil.rmtree(env.root)
    path.unlink()
    return found


@pytest.fixture
def user(project: Project, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who has told uv of the index and of nothing else; returns their configuration file."""
    for name in [name for name in os.environ if name.startswith(("UV_", "PIP_"))]:
        monkeypatch.delenv(name)
    path = tmp_path / "home/.config/uv/uv.toml"
    path.parent.mkdir(parents=True)
    path.write_text(f'index-url = "{index.as_uri()}"\n')
    for name, value in (
        ("HOME", str(tmp_path / "home")),
        ("XDG_CONFIG_DIRS", str(tmp_path / "absent")),
        ("PIP_CONFIG_FILE", os.devnull),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    project.series(FIRST)
    project.good("apply")
    return path


def test_of_the_users_configuration_only_the_index_counts(
    project: Project, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = made(project)
    assert "leaf==2.0" in str(plain["lock"])
    user.write_text(f"{user.read_text()}{EVERYTHING_ELSE}[pip]\n{OF_PIP}")
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)

    assert made(project) == plain


@pytest.mark.parametrize("place", [".", "..", "build", "build/checkouts/1.0.0", "build/checkouts/1.0.0/python"])
def test_configuration_that_lies_about_is_not_read(
    project: Project, user: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    plain = made(project)
    folder = project.layout.root / place
    elsewhere = 'index-url = "http://127.0.0.1:9/simple"\noffline = true\n'
    for name, text in (
        ("uv.toml", f"{elsewhere}{EVERYTHING_ELSE}[pip]\n{OF_PIP}"),
        (".python-version", "3.6\n"),
        (".env", "UV_OFFLINE=1\n"),
    ):
        (folder / name).write_text(text)
    if not (folder / "pyproject.toml").exists():
        (folder / "pyproject.toml").write_text('[tool.uv]\nrequired-version = "==0.0.1"\n')
    monkeypatch.chdir(folder)

    assert made(project) == plain
