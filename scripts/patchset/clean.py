"""`make clean`: say whether what was made can be removed without losing anybody's work; make removes it then."""

from __future__ import annotations

import click

from patchset.checkout import Checkout, guard, guard_other_work
from patchset.options import for_each, pass_layout
from patchset.paths import Layout

STEP = "clean"


@click.command("clean", short_help="Check that removing build/ and dist/ loses nobody's work.")
@pass_layout
def command(layout: Layout) -> None:
    """Check that no checkout under build/ has a change or a commit that would be lost with it."""

    def one(checkout: Checkout) -> None:
        git = checkout.git(STEP)
        guard(checkout, git)
        guard_other_work(checkout, git)

    paths = sorted(path for path in layout.checkouts.glob("*") if (path / ".git").exists())
    for_each([Checkout(layout, path, path.name, f"BASE={path.name}", None) for path in paths], one)
