"""The table of upstream releases: what is known of each, and which of them are served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from patchset import tables
from patchset.errors import USAGE, PatchsetError
from patchset.paths import Layout

STEP = "releases"


@dataclass(frozen=True)
class Release:
    """One upstream release."""

    version: str
    core_sha256: str
    core_size: int
    workspace_sha256: str
    workspace_size: int
    ruff: str
    pyright: str
    suite: bool
    bug_7236: bool
    bug_8313: bool
    line: str | None = None
    local: int | None = None

    @property
    def served_line(self) -> str:
        """The line of a served release.

        Raises:
            PatchsetError: The release is not served.
        """
        if self.line is None:
            raise PatchsetError(STEP, f"{self.version} is known but not served", exit_code=USAGE)
        return self.line

    @property
    def wheel_version(self) -> str:
        """The version of the wheel that is built from the release."""
        return f"{self.version}+turnscope.{self.local}"


@dataclass(frozen=True)
class Releases:
    """Every known release, oldest first."""

    rows: tuple[Release, ...]

    @property
    def served(self) -> tuple[Release, ...]:
        return tuple(row for row in self.rows if row.line is not None)

    @property
    def default(self) -> Release:
        """The newest served release."""
        if not self.served:
            raise PatchsetError(
                STEP,
                "no release is served",
                where="patches/releases.toml",
                next="give a row a `line` and a `local`",
                exit_code=USAGE,
            )
        return self.served[-1]

    def lines(self) -> dict[str, list[Release]]:
        """Return the served releases by line, oldest first; the last of a line is the one its series is written on."""
        found: dict[str, list[Release]] = {}
        for row in self.served:
            found.setdefault(row.served_line, []).append(row)
        return found

    def find(self, version: str) -> Release | None:
        """Return the row of `version`, served or not."""
        return next((row for row in self.rows if row.version == version), None)

    def get(self, version: str) -> Release:
        """Return the served release `version`.

        Raises:
            PatchsetError: It is unknown or not served; the message lists those that are.
        """
        row = self.find(version)
        if row is not None and row.line is not None:
            return row
        what = f"{version} is known but not served" if row else f"{version} is not a known release"
        served = ", ".join(row.version for row in self.served)
        raise PatchsetError(
            STEP,
            what,
            where="patches/releases.toml",
            state=f"served: {served or 'none'}",
            next="give one of them as BASE=, or all",
            exit_code=USAGE,
        )

    def resolve(self, base: str | None) -> list[Release]:
        """Return what `BASE=` asks for: one served release, every one (`all`), or the newest (nothing)."""
        if not base:
            return [self.default]
        return list(self.served) if base == "all" else [self.get(base)]


_TYPES = {"str": str, "int": int, "bool": bool}


def _release(row: Mapping[str, Any], number: int, where: str) -> Release:
    name = f"release {row.get('version', number)}"

    def wrong(what: str) -> PatchsetError:
        return PatchsetError(STEP, f"{name}: {what}", where=where, exit_code=USAGE)

    known = {field.name: str(field.type) for field in fields(Release)}
    if unknown := sorted(row.keys() - known.keys()):
        raise wrong(f"unknown key {unknown[0]}")
    for key, declared in known.items():
        kind, _, optional = declared.partition(" | ")
        if key not in row:
            if not optional:
                raise wrong(f"{key} is missing")
        elif type(row[key]) is not _TYPES[kind]:
            raise wrong(f"{key} is not {kind}")
    if ("line" in row) != ("local" in row):
        raise wrong("`line` and `local` come together")
    try:
        Version(row["version"])
    except InvalidVersion:
        raise wrong("the version is not one") from None
    return Release(**row)


def read(layout: Layout, path: Path) -> list[Release]:
    """Return the rows of a table of releases, as they stand there.

    Raises:
        PatchsetError: The file is missing, is not TOML, or a row is not a release.
    """
    rows = tables.rows(layout, path, "release", step=STEP)
    return [_release(row, number, layout.show(path)) for number, row in enumerate(rows, 1)]


def load(layout: Layout) -> Releases:
    """Read `patches/releases.toml`.

    Raises:
        PatchsetError: The file is missing, is not TOML, or a row is not a release.
    """
    path = layout.releases_toml
    found = read(layout, path)
    versions = [row.version for row in found]
    if repeated := sorted({version for version in versions if versions.count(version) > 1}):
        raise PatchsetError(STEP, f"{repeated[0]} has two rows", where=layout.show(path), exit_code=USAGE)
    return Releases(tuple(sorted(found, key=lambda row: Version(row.version))))
