"""`make clean`: say whether what was made can be removed without losing anybody's work; make removes it then."""

from __future__ import annotations

import click

from patchset.checkout import Checkout, guard
from patchset.errors import USAGE, PatchsetError
from patchset.options import for_each, pass_layout
from patchset.paths import Layout
from patchset.proc import Git

STEP = "clean"


@click.command("clean", short_help="Check that removing build/ and dist/ loses nobody's work.")
@pass_layout
def command(layout: Layout) -> None:
    """Check that no checkout under build/ has a change or a commit that would be lost with it."""

    def one(checkout: Checkout) -> None:
        git = checkout.git(STEP)
        guard(checkout, git)
        _guard_branches(checkout, git)

    paths = sorted(path for path in layout.checkouts.glob("*") if (path / ".git").exists())
    for_each([Checkout(layout, path, path.name, f"BASE={path.name}", None) for path in paths], one)


def _guard_branches(checkout: Checkout, git: Git) -> None:
    """Refuse a checkout with a stash, or a branch of somebody's own."""
    others = git("for-each-ref", "--format=%(refname:short)", "refs/stash", "refs/heads").splitlines()
    kept = [name for name in others if name != "patched"]
    if kept:
        raise PatchsetError(
            STEP,
            f"{checkout.shown} has work that would be lost: {', '.join(kept)}",
            where=checkout.shown,
            next=f"git -C {checkout.shown} bundle create ../kept.bundle --all to keep it, or rm -rf {checkout.shown}",
            exit_code=USAGE,
        )
