"""A base that is ready for work: its series applied, its environment made, core of its commits at hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from patchset import contract
from patchset.apply import ApplyResult, apply
from patchset.core import core_site
from patchset.envs import Env, ensure_env
from patchset.paths import Layout
from patchset.releases import Release, load
from patchset.suites import Suite, suite_of


@dataclass(frozen=True)
class Base:
    """A base, its checkout and its environment."""

    layout: Layout
    release: Release
    applied: ApplyResult
    env: Env

    @property
    def name(self) -> str:
        return self.release.version

    @property
    def line(self) -> str:
        return self.release.served_line

    @property
    def checkout(self) -> Path:
        return self.applied.checkout.path

    @property
    def suite(self) -> Suite:
        """Upstream's tests that the base is held against."""
        return suite_of(self.layout, self.release)

    @property
    def lines(self) -> frozenset[str]:
        """The contract lines that the base promises."""
        return contract.promised(self.layout, self.name)

    @property
    def lines_of_line(self) -> frozenset[str]:
        """The contract lines that any release of the base's line promises."""
        rows = load(self.layout).lines()[self.line]
        return frozenset(line for row in rows for line in contract.promised(self.layout, row.version))

    @property
    def stock(self) -> Path:
        """Core of the unpatched base, installed by itself."""
        return self.core(self.applied.base)

    @property
    def patched(self) -> Path:
        """Core of the patched base, installed by itself."""
        return self.core(self.applied.commit)

    def core(self, commit: str) -> Path:
        """Return the folder that has core of `commit` installed."""
        return core_site(self.layout, self.env, self.checkout, commit)


def prepare(layout: Layout, release: Release) -> Base:
    """Apply the series of a release and make its environment.

    Raises:
        PatchsetError: The series does not apply, or the environment cannot be made.
    """
    return Base(layout, release, apply(layout, release), ensure_env(layout, release))
