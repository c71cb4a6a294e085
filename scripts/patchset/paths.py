"""Where things are: what is kept in the repository and what is made under `build/` and `dist/`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CORE = Path("python/packages/core")
"""The core package inside a checkout, as in upstream's repository."""


@dataclass(frozen=True)
class Layout:
    """The rooms of the project, from its root."""

    root: Path

    @classmethod
    def discover(cls) -> Layout:
        """Return the layout of the repository that this module is part of."""
        return cls(Path(__file__).resolve().parents[2])

    @property
    def patches(self) -> Path:
        return self.root / "patches"

    @property
    def releases_toml(self) -> Path:
        return self.patches / "releases.toml"

    def series(self, line: str) -> Path:
        """Return the folder of the series of `line`."""
        return self.patches / line

    @property
    def requirements(self) -> Path:
        return self.root / "requirements"

    @property
    def behaviour(self) -> Path:
        """The behaviour tests, in upstream's layout."""
        return self.root / "python"

    @property
    def build(self) -> Path:
        return self.root / "build"

    @property
    def tools(self) -> Path:
        """The environment that the tooling runs in."""
        return self.build / "tools"

    @property
    def cache(self) -> Path:
        """Downloaded archives, under their published names."""
        return self.build / "cache"

    @property
    def checkouts(self) -> Path:
        return self.build / "checkouts"

    def checkout(self, name: str) -> Path:
        """Return the checkout of a base, or of a clone of upstream."""
        return self.checkouts / name

    @property
    def envs(self) -> Path:
        """The environments that gates and suites run in, without core."""
        return self.build / "envs"

    @property
    def cores(self) -> Path:
        """Core of one commit each, installed by itself, to be put on the path of an environment."""
        return self.build / "core"

    @property
    def work(self) -> Path:
        """Disposable worktrees."""
        return self.build / "work"

    @property
    def dist(self) -> Path:
        return self.root / "dist"

    def show(self, path: Path) -> str:
        """Return `path` as a person at the root of the project would type it."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)
