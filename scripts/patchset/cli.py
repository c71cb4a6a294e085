"""The front door of the tooling: one command a step, one place where a failure is shown.

A command lives in the module of its step; `COMMANDS` says where, and a module is imported only when its command runs.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import click
from rich.markup import escape

from patchset import console
from patchset.errors import USAGE, PatchsetError
from patchset.paths import Layout

COMMANDS: dict[str, str] = {
    "apply": "patchset.apply:command",
    "test": "patchset.gates:command",
    "prove": "patchset.prove:command",
    "wheel": "patchset.wheel:command",
    "siblings": "patchset.siblings:command",
    "dependents": "patchset.dependents:command",
    "pythons": "patchset.pythons:command",
    "demo": "patchset.demo:command",
    "export": "patchset.export:command",
    "lint": "patchset.lint:command",
    "try": "patchset.trial:command",
    "status": "patchset.status:command",
    "lock": "patchset.lock:command",
    "clean": "patchset.clean:command",
}
"""Command to `module:attribute`, in the order of the flow."""


class StepGroup(click.Group):
    """A group whose commands are found through `COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        return getattr(importlib.import_module(module), attribute)


@click.group(cls=StepGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The project to work on; the one this tooling is part of when left out.",
)
@click.pass_context
def patchset(ctx: click.Context, root: Path | None) -> None:
    """Apply, test, build and keep the patches; `make help` lists the same commands."""
    ctx.obj = Layout(root.resolve()) if root else Layout.discover()


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with its exit status: 0, 1 (a step failed) or 2 (the input is at fault)."""
    try:
        patchset.main(arguments, prog_name="patchset", standalone_mode=False)
    except PatchsetError as error:
        console.err.print(escape(error.render()))
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(USAGE)
    except click.Abort:
        console.err.print("interrupted; the same command goes on from here")
        sys.exit(130)
