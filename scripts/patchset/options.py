"""What commands have in common: the options they share, and running for several bases."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import click

from patchset.errors import PatchsetError, SeveralErrors
from patchset.paths import Layout

T = TypeVar("T")

pass_layout = click.make_pass_decorator(Layout)

base_option = click.option(
    "--base", default="", metavar="VERSION", help="A served release, or `all`; the newest served one when left out."
)


def count(number: int, noun: str) -> str:
    """Return `number` things, in the plural unless it is one."""
    plural = f"{noun}es" if noun.endswith(("ch", "s")) else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def for_each(items: Iterable[T], action: Callable[[T], object]) -> None:
    """Do `action` for each item, and raise what failed at the end, together.

    Raises:
        PatchsetError: One of them failed.
        SeveralErrors: More than one did.
    """
    errors: list[PatchsetError] = []
    for item in items:
        try:
            action(item)
        except PatchsetError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise SeveralErrors(errors)
