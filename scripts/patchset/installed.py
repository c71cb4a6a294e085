"""The patched core as users have it: its wheel, installed into an environment together with what a lock names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

from patchset.core import build_wheel, export
from patchset.envs import Env
from patchset.paths import CORE
from patchset.prepared import Base
from patchset.wheel import set_version

_BLOCK = re.compile(r"\n(?=\S)")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def patched_wheel(base: Base, folder: Path) -> Path:
    """Build the wheel of the patched core in an empty folder; the bytes are those that `make wheel` gives."""
    source = folder / "source"
    export(base.checkout, base.applied.commit, source, CORE)
    set_version(source / CORE, base.name, base.release.wheel_version)
    return build_wheel(base.env, source / CORE, folder / "wheel")


def site_of(env: Env) -> Path:
    """Return the folder of an environment that packages are installed in."""
    (site,) = env.root.glob("lib/python3*/site-packages")
    return site


def requirement(wheel: Path) -> str:
    """Return the wheel as a line of a requirements file, checked by hash."""
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return f"agent-framework-core @ {wheel.resolve().as_uri()} --hash=sha256:{digest}\n"


def chosen(lock: Path, wanted: Callable[[str], bool]) -> str:
    """Return the part of a lock whose projects are wanted, by their names."""
    blocks = _BLOCK.split(lock.read_text(encoding="utf-8").strip())
    return "".join(f"{block}\n" for block in blocks if (name := _NAME.match(block)) and wanted(name[0]))


def projects(lock: Path) -> list[str]:
    """Return the names of the projects of a lock."""
    blocks = _BLOCK.split(lock.read_text(encoding="utf-8").strip())
    return [name[0] for block in blocks if (name := _NAME.match(block))]
