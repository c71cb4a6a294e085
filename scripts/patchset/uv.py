"""Run uv with the user's index settings and nothing else of their configuration.

Uv reads a `pyproject.toml` or `uv.toml` from the folder it runs in upwards, and a checkout of upstream has one that
asks for another uv; it therefore runs with a configuration file of its own, with what the user's say of indexes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomlkit

from patchset import tables
from patchset.indexes import UV_SETTINGS, UV_VARIABLES, pip_env
from patchset.paths import Layout
from patchset.proc import run


def _user_files(environ: Mapping[str, str]) -> list[Path]:
    """Return the user's configuration files, the one that overrules last, as uv finds them."""
    if given := environ.get("UV_CONFIG_FILE"):
        return [Path(given)]
    if environ.get("UV_NO_CONFIG"):
        return []
    system = [Path(folder) / "uv/uv.toml" for folder in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")]
    home = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/")) / ".config")
    return [path for path in (Path("/etc/uv/uv.toml"), *reversed(system), home / "uv/uv.toml") if path.is_file()]


def uv_env(layout: Layout, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for uv.

    Where the user has told pip of an index and not uv, uv takes that one: whoever set up one client means both.

    Args:
        layout: Where things are; the configuration file is made below `build/`.
        environ: The user's environment; the process's when left out.
    """
    source = dict(os.environ if environ is None else environ)
    settings: dict[str, Any] = {}
    for path in _user_files(source):
        found = tables.read(layout, path, step="uv")
        settings |= {name: value for name, value in found.items() if name in UV_SETTINGS}
    env = {name: value for name, value in source.items() if not name.startswith(("UV_", "PYTHON", "VIRTUAL_ENV"))}
    env |= {name: value for name, value in source.items() if name in UV_VARIABLES}
    pip = pip_env(Path(sys.executable), source)
    if "PIP_INDEX_URL" in pip and not (
        {"index", "index-url", "no-index"} & settings.keys()
        or {"UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL"} & env.keys()
    ):
        env["UV_DEFAULT_INDEX"] = pip["PIP_INDEX_URL"]
    if "PIP_CERT" in pip:
        env.setdefault("SSL_CERT_FILE", pip["PIP_CERT"])
    layout.build.mkdir(parents=True, exist_ok=True)
    own = layout.build / "uv.toml"
    content = tomlkit.dumps(settings)
    if not own.is_file() or own.read_text(encoding="utf-8") != content:
        own.touch(mode=0o600)  # the address of an index may hold a password
        own.write_text(content, encoding="utf-8")
    env.update(UV_CONFIG_FILE=str(own), UV_PYTHON_DOWNLOADS="never", UV_NO_PROGRESS="1", UV_LINK_MODE="copy")
    return env


def uv(
    layout: Layout,
    *arguments: str | Path,
    step: str,
    what: str,
    input: str | None = None,
    next: str | None = "check the network and the index settings of uv or pip, then run the command again",
) -> subprocess.CompletedProcess[bytes]:
    """Run uv, from outside of any checkout.

    Args:
        layout: Where things are.
        arguments: The arguments after `uv`.

    Keyword Args:
        step: The step that an error names.
        what: What failed, should it fail.
        input: What uv reads.
        next: The next command that an error names.

    Raises:
        PatchsetError: Uv failed.
    """
    env = uv_env(layout)
    program = Path(sys.executable).with_name("uv")
    data = None if input is None else input.encode()
    return run([program, *arguments], step=step, what=what, cwd=layout.build, env=env, input=data, next=next)
