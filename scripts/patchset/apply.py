"""`make apply`: a base checkout with its series applied, made, brought up to date, or left alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from patchset import console, fetch
from patchset.base import BASE_REF, base_digest, make_base
from patchset.checkout import (
    SERIES_REF,
    Checkout,
    apply_series,
    guard,
    guard_other_work,
    new_folder,
    one_at_a_time,
    put,
)
from patchset.errors import USAGE, PatchsetError
from patchset.options import base_option, count, for_each, pass_layout
from patchset.paths import Layout
from patchset.proc import Git
from patchset.releases import Release, load
from patchset.series import series_digest, series_paths
from patchset.upstream import apply_to


@dataclass(frozen=True)
class ApplyResult:
    """A checkout with its series."""

    checkout: Checkout
    base: str
    commit: str
    patches: int
    changed: bool
    """Whether anything had to be done."""


def checkout_of(layout: Layout, release: Release) -> Checkout:
    """Return the checkout of a served release, made or not."""
    arguments = f"BASE={release.version}"
    reference = load(layout).lines()[release.served_line][-1].version
    path = layout.checkout(release.version)
    if release.version == reference:
        return Checkout(layout, path, release.version, arguments, f"make export {arguments}")
    return Checkout(layout, path, release.version, arguments, None, reference)


def apply(layout: Layout, release: Release) -> ApplyResult:
    """Make sure that the checkout of `release` stands on its series.

    Returns:
        The checkout and its commits.

    Raises:
        PatchsetError: An archive cannot be had, a patch does not apply, or the checkout holds somebody's work.
    """
    checkout = checkout_of(layout, release)
    paths = series_paths(layout, release.served_line)
    wanted = {"base": base_digest(release), "series": series_digest(paths)}
    with one_at_a_time(layout):
        git = checkout.git()
        made = checkout.path.exists()
        has: dict[str, str | None] = {}
        if made:
            guard(checkout, git)
            has = {key: git.read("config", f"patchset.{key}") for key in wanted}
            if has == wanted and git("rev-parse", "HEAD") == git.read("rev-parse", SERIES_REF):
                return _result(checkout, git, len(paths), changed=False)
        if has.get("base") == wanted["base"]:
            apply_series(checkout, git, paths)
        else:
            if made:
                guard_other_work(checkout, git)
            _make(checkout, release, layout, paths)
        return _result(checkout, git, len(paths), changed=True)


def _make(checkout: Checkout, release: Release, layout: Layout, paths: list[Path]) -> None:
    archives = fetch.fetch(layout, release)
    with new_folder(layout) as folder:
        make_base(layout, release, archives, folder)
        try:
            apply_series(checkout, Git(folder, step="apply"), paths)
        except PatchsetError:
            # Stopped at a patch: the checkout is where that is put right.
            put(folder, checkout.path)
            raise
        put(folder, checkout.path)


def _result(checkout: Checkout, git: Git, patches: int, *, changed: bool) -> ApplyResult:
    return ApplyResult(checkout, git("rev-parse", BASE_REF), git("rev-parse", "HEAD"), patches, changed)


@click.command("apply", short_help="Fetch a release, make its checkout and apply the patches.")
@base_option
@click.option("--upstream", default="", metavar="URL|FOLDER", help="Apply them to a commit of this repository instead.")
@click.option("--ref", default="", help="The tag, branch or commit of it; its HEAD when left out.")
@pass_layout
def command(layout: Layout, base: str, upstream: str, ref: str) -> None:
    """Fetch a release, make its checkout and apply the patches; say so when there is nothing to do."""
    releases = load(layout)
    if upstream:
        apply_to(layout, releases, upstream, ref, base)
        return
    if ref:
        raise PatchsetError("apply", "REF= goes with UPSTREAM=", exit_code=USAGE)

    def one(release: Release) -> None:
        done = apply(layout, release)
        patches = count(done.patches, "patch")
        what = f"{patches} applied" if done.changed else f"nothing to do, {patches} already applied"
        console.say(f"{release.version}: {what} ({done.checkout.shown} at {done.commit[:12]})")

    for_each(releases.resolve(base), one)
