"""Run ruff and pyright as upstream does, on a core package in upstream's layout, without writing into it."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from patchset.envs import Env
from patchset.errors import PatchsetError
from patchset.proc import run, tail

STEP = "checks"
_SHOWN = 20


def ruff_check(env: Env, package: Path, paths: Sequence[Path | str] = (".",)) -> None:
    """Check `paths` of a package under the rules of its own settings.

    Raises:
        PatchsetError: Ruff has something to say.
    """
    # Upstream's settings say `fix = true`: a check would edit what it checks.
    _ruff(env, package, "ruff check", "check", "--no-fix", "--no-cache", "--output-format", "concise", *paths)


def ruff_format(env: Env, package: Path, paths: Sequence[Path | str] = (".",)) -> None:
    """Check that `paths` of a package are formatted.

    Raises:
        PatchsetError: A file would be formatted otherwise.
    """
    _ruff(env, package, "ruff format", "format", "--check", "--no-cache", *paths)


def _ruff(env: Env, package: Path, step: str, *arguments: Path | str) -> None:
    command = [env.bin / "ruff", *arguments]
    again = f"cd {os.path.relpath(package)} && {shlex.join(str(word) for word in command)}"
    run(command, step=step, what=f"{step} is not clean", cwd=package, env=env.environ(), next=again)


def pyright(env: Env, package: Path) -> None:
    """Check the types of a package under its own settings.

    Raises:
        PatchsetError: There are errors, or nothing was checked.
    """
    command = [env.bin / "pyright", "--pythonpath", env.python]
    again = f"cd {os.path.relpath(package)} && {shlex.join(str(word) for word in command)}"
    # The wrapper would ask the network for a newer version, to tell of it.
    variables = env.environ(PYRIGHT_PYTHON_IGNORE_WARNINGS="1")
    done = run(
        [*command, "--outputjson"], step="pyright", what="pyright failed", cwd=package, env=variables, check=False
    )
    printed = done.stdout.decode("utf-8", "replace")
    try:
        result: dict[str, Any] = json.loads(printed)
    except json.JSONDecodeError as error:
        printed += done.stderr.decode("utf-8", "replace")
        raise PatchsetError("pyright", "pyright failed", where=str(package), output=tail(printed)) from error
    summary = result["summary"]
    if not summary["filesAnalyzed"]:
        raise PatchsetError("pyright", "pyright found no file to check", where=str(package))
    errors = [entry for entry in result["generalDiagnostics"] if entry["severity"] == "error"]
    if errors or done.returncode:
        shown = [_line(package, entry) for entry in errors[:_SHOWN]]
        if len(errors) > _SHOWN:
            shown.append(f"... and {len(errors) - _SHOWN} more")
        raise PatchsetError("pyright", f"pyright reports {len(errors)} errors", output="\n".join(shown), next=again)


def _line(package: Path, entry: dict[str, Any]) -> str:
    file, start = Path(entry["file"]), entry.get("range", {}).get("start", {"line": 0, "character": 0})
    shown = file.relative_to(package) if file.is_relative_to(package) else file
    message = " ".join(str(entry["message"]).split())
    return f"{shown}:{start['line'] + 1}:{start['character'] + 1}: {message} ({entry.get('rule', 'error')})"
