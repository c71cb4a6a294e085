"""`make pythons`: the behaviour tests on the installed wheel, on every Python that it is for and that is there."""

from __future__ import annotations

import os
import sys
import tempfile
from functools import partial
from pathlib import Path

import click

from patchset import behaviour, contract
from patchset.envs import Env, check_python, install_lock, make_venv
from patchset.errors import PatchsetError
from patchset.options import base_option, pass_layout
from patchset.paths import Layout
from patchset.prepared import Base, prepare
from patchset.releases import Release, load
from patchset.smoke import candidates, find_pythons
from patchset.suites import slug
from patchset.summary import Gate, Session, listed
from patchset.uv import uv
from patchset.wheel import make_wheel

STEP = "pythons"


def behaviour_on(base: Base, wheel: Path, python: Path, gate: Gate) -> None:
    """Install the lock of a base and its wheel for one interpreter, and run the behaviour tests there.

    Raises:
        PatchsetError: A test fails, or a promise is not tested.
    """
    layout = base.layout
    layout.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="python-", dir=layout.work, ignore_cleanup_errors=True) as folder:
        env = Env(Path(folder) / "venv", base.env.digest)
        make_venv(layout, env.root, python)
        install_lock(layout, env.python, layout.requirements / f"{base.name}.txt")
        uv(
            layout,
            *("pip", "install", "--quiet", "--python", env.python, "--no-deps", wheel),
            step=STEP,
            what=f"{wheel.name} cannot be installed",
        )
        title = f"{base.name}: behaviour tests on the wheel, {gate.name}"
        report = behaviour.run(base, title, env)
    gate.tests_passed, gate.tests_failed = len(report.passed), len(report.broken)
    problems = contract.problems(base.name, base.lines, report)
    if report.broken or problems:
        raise PatchsetError(
            "behaviour tests",
            f"{len(report.broken)} behaviour tests fail on the wheel"
            if report.broken
            else "the contract is not covered",
            output="\n".join([*listed(report.broken), *problems]),
            where=f"build/logs/{slug(title)}.log",
        )


@click.command("pythons", short_help="The behaviour tests on the wheel, on every Python.")
@base_option
@pass_layout
def command(layout: Layout, base: str) -> None:
    """Build and try the wheel, then run the behaviour tests on it with every Python that it is for."""
    bases = load(layout).resolve(base)
    check_python()
    session = Session()

    def one(release: Release) -> None:
        made: list[tuple[Base, Path]] = []

        def build(gate: Gate) -> None:
            ready = prepare(layout, release)
            made.append((ready, make_wheel(ready)[0]))

        if session.gate(release.version, "wheel", build):
            ((ready, wheel),) = made
            for minor, python in find_pythons(candidates(os.environ)).items():
                session.gate(release.version, f"Python 3.{minor}", partial(behaviour_on, ready, wheel, python))

    for release in bases:
        one(release)
    sys.exit(session.finish("make pythons"))
