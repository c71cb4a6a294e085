"""Read the TOML files of the project, with one message for whatever is wrong with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import tomlkit
from tomlkit.exceptions import TOMLKitError

from patchset.errors import USAGE, PatchsetError
from patchset.paths import Layout


def read(layout: Layout, path: Path, *, step: str) -> dict[str, Any]:
    """Return the contents of the TOML file `path` as plain values.

    Raises:
        PatchsetError: The file is missing or is not TOML.
    """
    try:
        return tomlkit.parse(path.read_bytes()).unwrap()
    except (OSError, UnicodeDecodeError, TOMLKitError) as error:
        raise PatchsetError(
            step, f"{path.name} cannot be read: {error}", where=layout.show(path), exit_code=USAGE
        ) from error


def rows(layout: Layout, path: Path, name: str, *, step: str) -> list[dict[str, Any]]:
    """Return the `[[name]]` rows of the TOML file `path`.

    Raises:
        PatchsetError: The file cannot be read, or has anything but such rows.
    """
    table = read(layout, path, step=step)
    found: Any = table.pop(name, [])
    if table or not isinstance(found, list) or not all(isinstance(row, dict) for row in cast("list[Any]", found)):
        raise PatchsetError(
            step, f"{path.name} may have [[{name}]] rows and nothing else", where=layout.show(path), exit_code=USAGE
        )
    return cast("list[dict[str, Any]]", found)
