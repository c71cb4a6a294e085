"""Make the environment of a base: everything that its gates, suites and builds need, but for core itself.

Core is put on the path per commit, so that the unpatched and the patched one run in the same environment.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from patchset import console
from patchset.errors import USAGE, PatchsetError
from patchset.paths import Layout
from patchset.proc import python_env
from patchset.releases import Release
from patchset.uv import uv

STEP = "environment"
OLDEST = (3, 11)
"""Upstream's sources are clean under pyright from this Python on; with 3.10 it reports errors in stubs."""


@dataclass(frozen=True)
class Env:
    """An environment to run gates and suites in."""

    root: Path
    digest: str
    """Of everything that is installed, and of the Python."""

    @property
    def bin(self) -> Path:
        return self.root / "bin"

    @property
    def python(self) -> Path:
        return self.bin / "python"

    def environ(self, *path: Path, **extra: str) -> dict[str, str]:
        """Return the variables for a program of the environment, with `path` in front of what Python imports."""
        env = python_env() | extra
        env["PATH"] = f"{self.bin}:{env.get('PATH', '')}"
        if path:
            env["PYTHONPATH"] = ":".join(str(folder) for folder in path)
        return env

    def suite_environ(self, home: Path, path: Sequence[Path]) -> dict[str, str]:
        """Return the variables for a suite: nothing of the user's, whose keys would let tests call real services."""
        env = self.environ(*path)
        kept = ("PATH", "PYTHONPATH", "PYTHONNOUSERSITE", "TMPDIR", "SYSTEMROOT")
        return {name: env[name] for name in kept if name in env} | {"HOME": str(home), "LC_ALL": "C.UTF-8", "TZ": "UTC"}


def check_python() -> str:
    """Return the version of the running Python.

    Raises:
        PatchsetError: It is too old for the gates.
    """
    version = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info < OLDEST:
        raise PatchsetError(
            STEP,
            f"Python {version} is too old for the gates, {OLDEST[0]}.{OLDEST[1]} or newer is needed",
            why="upstream's source is clean under pyright only there; the wheel runs on Python 3.10 as well",
            next="run the same command with a newer Python, as in: make PYTHON=python3.11 ...",
            exit_code=USAGE,
        )
    return version


def lock_digest(layout: Layout, name: str) -> str:
    """Return the digest of the lock `name` under the running Python.

    Raises:
        PatchsetError: There is no such lock, or the running Python is too old for the gates.
    """
    version = check_python()
    lock = layout.requirements / f"{name}.txt"
    if not lock.is_file():
        raise PatchsetError(
            STEP,
            f"{layout.show(lock)} is missing",
            next=f"write requirements/{name}.in (another release's is a start), then: make lock BASE={name}",
            exit_code=USAGE,
        )
    return hashlib.sha256(f"{sys.implementation.name} {version}\n".encode() + lock.read_bytes()).hexdigest()


def ensure_env(layout: Layout, release: Release) -> Env:
    """Return the environment of `release`, made when it is missing or its lock or the Python has changed.

    Raises:
        PatchsetError: The lock is missing, the Python is too old, or the packages cannot be had.
    """
    return ensure_named(layout, release.version)


def ensure_named(layout: Layout, name: str) -> Env:
    """Return the environment of the lock `name`, made when it is missing or the lock or the Python has changed.

    Raises:
        PatchsetError: The lock is missing, the Python is too old, or the packages cannot be had.
    """
    env = Env(layout.envs / name, lock_digest(layout, name))
    layout.envs.mkdir(parents=True, exist_ok=True)
    with (layout.envs / f".{name}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # somebody else may be making it
        stamp = env.root / "stamp"
        if not stamp.is_file() or stamp.read_text(encoding="utf-8") != env.digest:
            _make(layout, name, env)
            stamp.write_text(env.digest, encoding="utf-8")
    return env


def _make(layout: Layout, name: str, env: Env) -> None:
    lock = layout.requirements / f"{name}.txt"
    with console.step(f"{name}: install {layout.show(lock)} into {layout.show(env.root)}"):
        shutil.rmtree(env.root, ignore_errors=True)
        make_venv(layout, env.root, Path(sys.executable))
        install_lock(layout, env.python, lock)


def install_lock(layout: Layout, python: Path, lock: Path) -> None:
    """Install exactly what a lock says into the environment of an interpreter, checked by hash and built by nobody."""
    uv(
        layout,
        *("pip", "install", "--quiet", "--python", python, "--require-hashes", "--no-deps"),
        *("--only-binary", ":all:", "--requirement", lock),
        step=STEP,
        what=f"{layout.show(lock)} cannot be installed",
    )


def make_venv(layout: Layout, root: Path, python: Path) -> None:
    """Make an empty environment in `root` with the interpreter `python`."""
    uv(
        layout,
        *("venv", "--quiet", "--no-project", "--python", python, root),
        step=STEP,
        what=f"no environment could be made with {python}",
        next=None,
    )
