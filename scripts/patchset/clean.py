"""`make clean`: say whether what was made can be removed without losing anybody's work; make removes it then."""

from __future__ import annotations

from pathlib import Path

import click

from patchset.apply import checkout_of
from patchset.checkout import (
    Checkout,
    guard_branch,
    guard_clean,
    guard_commits,
    guard_other_work,
    guard_progress,
    removal_advice,
)
from patchset.errors import PatchsetError
from patchset.options import for_each, pass_layout
from patchset.paths import Layout
from patchset.releases import load

STEP = "clean"


def check(checkout: Checkout) -> None:
    """Refuse to remove a checkout that holds somebody's work.

    Raises:
        PatchsetError: It does; the message says how to keep it outside of the checkout, which goes away as a whole.
    """
    git = checkout.git(STEP)
    commit = f"git -C {checkout.shown} add --all && git -C {checkout.shown} commit && "
    for guard, before_export in (
        (guard_progress, None),
        (guard_branch, None),
        (guard_commits, ""),
        (guard_clean, commit),
        (guard_other_work, None),
    ):
        try:
            guard(checkout, git)
        except PatchsetError as error:
            error.next = removal_advice(checkout)
            if checkout.export and before_export is not None:
                error.next = f"keep it as patches: {before_export}{checkout.export} && make clean\nor {error.next}"
            raise


@click.command("clean", short_help="Check that removing build/ and dist/ loses nobody's work.")
@pass_layout
def command(layout: Layout) -> None:
    """Check that no checkout under build/ has a change or a commit that would be lost with it."""
    served = {layout.checkout(release.version): release for release in load(layout).served}

    def one(path: Path) -> None:
        known = path in served
        check(checkout_of(layout, served[path]) if known else Checkout(layout, path, path.name, "", None))

    for_each(sorted(path for path in layout.checkouts.glob("*") if (path / ".git").exists()), one)
