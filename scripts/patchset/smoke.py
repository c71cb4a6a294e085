"""Try a wheel in a clean environment of each Python that it is for and that the machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from patchset import console
from patchset.envs import make_venv
from patchset.errors import PatchsetError
from patchset.options import for_each
from patchset.paths import Layout
from patchset.proc import python_env, run
from patchset.releases import Release
from patchset.uv import uv

STEP = "smoke"
MINORS = (10, 11, 12, 13)

SCRIPT = Path(__file__).resolve().parents[1] / "demos" / "smoke.py"
_ASK = "import sys, venv; print(sys.version_info[1], sys.implementation.name, sys.base_prefix)"


def candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield interpreters that may be there: this one, those on the path, and those of pyenv."""
    yield Path(sys.executable)
    for minor in MINORS:
        if found := shutil.which(f"python3.{minor}", path=environ.get("PATH")):
            yield Path(found)
    own = Path(sys.base_prefix)
    root = environ.get("PYENV_ROOT") or (own.parents[1] if own.parent.name == "versions" else None)
    pyenv = Path(root or Path(environ.get("HOME", "/")) / ".pyenv")
    yield from sorted(pyenv.glob("versions/3.*/bin/python3"))


def find_pythons(candidates: Iterable[Path]) -> dict[int, Path]:
    """Return one working CPython for each minor version that the wheel is for, the first one found of each."""
    found: dict[int, Path] = {}
    for candidate in candidates:
        asked = subprocess.run(
            [str(candidate), "-c", _ASK], env=python_env(), capture_output=True, text=True, check=False
        )
        answer = asked.stdout.split(maxsplit=2)
        # A shim of pyenv for a version that is not chosen answers with an error.
        if asked.returncode == 0 and answer[1] == "cpython" and int(answer[0]) in MINORS:
            found.setdefault(int(answer[0]), candidate)
    return dict(sorted(found.items()))


def try_wheel(layout: Layout, release: Release, wheel: Path) -> list[str]:
    """Install a wheel into a clean environment of each Python and exercise it there.

    Returns:
        The Python versions.

    Raises:
        PatchsetError: No fitting Python was found, or the wheel fails on one.
    """
    pythons = find_pythons(candidates(os.environ))
    if not pythons:
        raise PatchsetError(STEP, f"there is no Python from 3.{MINORS[0]} to 3.{MINORS[-1]} to try the wheel on")
    layout.work.mkdir(parents=True, exist_ok=True)

    def one(found: tuple[int, Path]) -> None:
        minor, python = found
        version = f"3.{minor}"
        with (
            console.step(f"{release.version}: try the wheel on Python {version}"),
            tempfile.TemporaryDirectory(prefix=f"smoke-{version}-", dir=layout.work) as folder,
        ):
            venv = Path(folder) / "venv"
            make_venv(layout, venv, python)
            lock = layout.requirements / f"{release.version}.txt"
            uv(
                layout,
                # Its requirements at the versions of the lock, checked by hash.
                *("pip", "install", "--quiet", "--python", venv / "bin/python", "--constraint", lock, wheel),
                step=STEP,
                what=f"{wheel.name} cannot be installed on Python {version}",
            )
            run(
                [venv / "bin/python", SCRIPT, release.wheel_version],
                step=STEP,
                what=f"{wheel.name} does not do what it should on Python {version}",
                cwd=Path(folder),
                env=python_env(PYTHONDONTWRITEBYTECODE="1"),
                next="make demo shows the task call by call, make test which promise is broken",
            )

    for_each(pythons.items(), one)
    return [f"3.{minor}" for minor in pythons]
