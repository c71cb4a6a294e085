"""Run other programs so that the same inputs give the same outputs on every machine.

Git runs without the user's configuration, hooks, signing, clock and identity; Python runs without the user's `PYTHON*`
variables; a failure carries the tail of what was printed.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from patchset.errors import FAILED, PatchsetError

AUTHOR_NAME = "agent-framework turnscope"
AUTHOR_EMAIL = "turnscope@localhost"
EPOCH = 1767225600
"""2026-01-01 00:00 UTC, the date of everything that is made here and would otherwise carry the clock's."""

_TAIL = 20

_GIT_CONFIG = {
    "core.hooksPath": os.devnull,
    "core.attributesFile": os.devnull,
    "core.excludesFile": os.devnull,
    "core.autocrlf": "false",
    "core.eol": "lf",
    "core.safecrlf": "false",
    "core.whitespace": "",
    "core.quotePath": "false",
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.pager": "cat",
    "core.editor": "true",
    "apply.whitespace": "nowarn",
    "commit.gpgSign": "false",
    "tag.gpgSign": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "advice.detachedHead": "false",
    "color.ui": "false",
    "diff.renames": "true",
    "diff.algorithm": "myers",
    "init.defaultBranch": "patched",
    # The user's own list is not read, and what is under build/ may be another user's in a container.
    "safe.directory": "*",
    "user.name": AUTHOR_NAME,
    "user.email": AUTHOR_EMAIL,
}


def git_env(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for git: nothing of the user's configuration, a fixed identity and a fixed date."""
    source = os.environ if environ is None else environ
    env = {name: value for name, value in source.items() if not name.startswith("GIT_")}
    env.update(
        GIT_CONFIG_NOSYSTEM="1",
        GIT_CONFIG_SYSTEM=os.devnull,
        GIT_CONFIG_GLOBAL=os.devnull,
        GIT_ATTR_NOSYSTEM="1",
        GIT_TERMINAL_PROMPT="0",
        GIT_AUTHOR_NAME=AUTHOR_NAME,
        GIT_AUTHOR_EMAIL=AUTHOR_EMAIL,
        GIT_AUTHOR_DATE=f"{EPOCH} +0000",
        GIT_COMMITTER_NAME=AUTHOR_NAME,
        GIT_COMMITTER_EMAIL=AUTHOR_EMAIL,
        GIT_COMMITTER_DATE=f"{EPOCH} +0000",
        GIT_CONFIG_COUNT=str(len(_GIT_CONFIG)),
        LC_ALL="C",
        TZ="UTC",
    )
    for number, (key, value) in enumerate(_GIT_CONFIG.items()):
        env[f"GIT_CONFIG_KEY_{number}"] = key
        env[f"GIT_CONFIG_VALUE_{number}"] = value
    return env


def python_env(environ: Mapping[str, str] | None = None, **extra: str) -> dict[str, str]:
    """Return the environment for another Python: the user's without `PYTHON*` and virtual environment variables."""
    source = os.environ if environ is None else environ
    env = {name: value for name, value in source.items() if not name.startswith("PYTHON") and name != "VIRTUAL_ENV"}
    env["PYTHONNOUSERSITE"] = "1"
    return env | extra


def tail(text: str, lines: int = _TAIL) -> str:
    """Return the last lines of what a program printed."""
    return "\n".join(text.rstrip().splitlines()[-lines:])


def run(
    command: Sequence[str | Path],
    *,
    step: str,
    what: str,
    cwd: Path,
    env: Mapping[str, str],
    next: str | None = None,
    check: bool = True,
    input: bytes | None = None,
    exit_code: int = FAILED,
) -> subprocess.CompletedProcess[bytes]:
    """Run `command`, output captured, and raise with its tail when it fails.

    Args:
        command: The program and its arguments.

    Keyword Args:
        step: The step that the error names.
        what: What failed, should it fail.
        cwd: The folder to run in.
        env: The whole environment.
        next: The next command that the error names.
        check: Whether a status other than 0 raises.
        input: What the program reads.
        exit_code: The exit status that the error asks for.

    Returns:
        The finished process, output as bytes.

    Raises:
        PatchsetError: The program is missing, or it failed and `check` is set.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, cwd=cwd, env=dict(env), input=input, capture_output=True, check=False)
    except FileNotFoundError as missing:
        if not cwd.is_dir():
            raise
        raise PatchsetError(
            step, f"{what}: {words[0]} is not installed", next=next or f"install {words[0]} and run the command again"
        ) from missing
    if check and done.returncode:
        printed = (done.stdout + done.stderr).decode("utf-8", "replace")
        raise PatchsetError(step, what, where=shlex.join(words), output=tail(printed), next=next, exit_code=exit_code)
    return done


class Git:
    """Git in one checkout, isolated."""

    def __init__(self, checkout: Path, *, step: str) -> None:
        """Run git in `checkout`; failures name `step`."""
        self.checkout = checkout
        self.step = step
        self.env = git_env()

    def run(
        self,
        *arguments: str | Path,
        check: bool = True,
        input: bytes | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run one git command and return the finished process.

        Args:
            arguments: The arguments after `git`.

        Keyword Args:
            check: Whether a status other than 0 raises.
            input: What git reads.
            env: Variables to add, such as another index file.
        """
        return run(
            ["git", *arguments],
            step=self.step,
            what=f"git {arguments[0]} failed",
            cwd=self.checkout,
            env=self.env | dict(env or {}),
            check=check,
            input=input,
        )

    def __call__(self, *arguments: str | Path, input: bytes | None = None) -> str:
        """Run one git command and return what it printed, without the last line break."""
        return self.run(*arguments, input=input).stdout.decode("utf-8", "surrogateescape").rstrip("\n")

    def ok(self, *arguments: str | Path, input: bytes | None = None) -> bool:
        """Run one git command and return whether it succeeded."""
        return self.run(*arguments, check=False, input=input).returncode == 0

    def read(self, *arguments: str | Path) -> str | None:
        """Run one git command and return what it printed, or None when it failed."""
        done = self.run(*arguments, check=False)
        return done.stdout.decode("utf-8", "surrogateescape").rstrip("\n") if done.returncode == 0 else None
