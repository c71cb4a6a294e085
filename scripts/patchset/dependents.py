"""`make dependents`: released packages that build on core, next to the patched wheel.

They are installed after it, by pip and by uv, and must leave it alone; every module of theirs can be imported; and what
they use of core's private names is there, and takes what they give.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from patchset import console, guard
from patchset.envs import check_python, make_venv
from patchset.errors import PatchsetError
from patchset.indexes import pip_env
from patchset.installed import chosen, patched_wheel, projects, requirement, site_of
from patchset.options import base_option, count, pass_layout
from patchset.paths import Layout
from patchset.prepared import Base
from patchset.proc import python_env, run
from patchset.releases import Release, load
from patchset.siblings import prepare
from patchset.summary import Gate, Session
from patchset.uv import uv

STEP = "dependents"
SCRIPT = Path(__file__).resolve().parents[1] / "demos" / "dependents.py"

Installer = Callable[[Layout, Path, Path, tuple[str, ...]], None]
"""Installs the requirements of a file into the environment of a Python, with some further options."""


def with_pip(layout: Layout, python: Path, requirements: Path, options: tuple[str, ...]) -> None:
    """Install by pip."""
    own = Path(sys.executable)
    command = [own, "-m", "pip", "--python", python, "install", "--quiet", "--only-binary", ":all:", *options]
    run(
        [*command, "-r", requirements],
        step=STEP,
        what="pip does not install them",
        cwd=requirements.parent,
        env=pip_env(own),
    )


def with_uv(layout: Layout, python: Path, requirements: Path, options: tuple[str, ...]) -> None:
    """Install by uv."""
    uv(
        layout,
        *("pip", "install", "--quiet", "--python", python, "--only-binary", ":all:", *options),
        *("-r", requirements),
        step=STEP,
        what="uv does not install them",
    )


INSTALLERS: dict[str, Installer] = {"pip": with_pip, "uv": with_uv}


def lock_of(base: Base) -> Path:
    """Return the lock that has the dependents of a base and what they require."""
    return base.layout.requirements / f"dependents-{base.name}.txt"


def is_dependent(project: str) -> bool:
    """Return whether a project is one of upstream's packages, all of which build on core."""
    return project.startswith("agent-framework-")


def packages(base: Base) -> list[str]:
    """Return the modules of the dependents of a base.

    Raises:
        PatchsetError: The lock has none.
    """
    found = [name.replace("-", "_") for name in projects(lock_of(base)) if is_dependent(name)]
    if not found:
        raise PatchsetError(STEP, "there is nothing that builds on core", where=base.layout.show(lock_of(base)))
    return found


def install(base: Base, wheel: Path, installer: Installer, title: str) -> None:
    """Install the wheel, then the dependents, and see that the wheel is still there and that all can be imported.

    Raises:
        PatchsetError: They do not install, or do not get on with the wheel.
    """
    layout, lock, names = base.layout, lock_of(base), packages(base)
    with console.step(title), tempfile.TemporaryDirectory(prefix="dependents-", dir=layout.work) as folder:
        python = Path(folder) / "venv/bin/python"
        make_venv(layout, Path(folder) / "venv", Path(sys.executable))
        first, then = Path(folder) / "first.txt", Path(folder) / "then.txt"
        others = chosen(lock, lambda name: not is_dependent(name))
        first.write_text(requirement(wheel) + others, encoding="utf-8")
        then.write_text(chosen(lock, is_dependent), encoding="utf-8")
        # Complete by itself. The dependents, then, have their requirements looked up, among them that of core.
        installer(layout, python, first, ("--no-deps",))
        installer(layout, python, then, ())
        uv(
            layout,
            *("pip", "check", "--quiet", "--python", python),
            step=STEP,
            what="what is installed does not fit together",
            next=None,
        )
        run(
            [python, SCRIPT, base.release.wheel_version, *names],
            step=STEP,
            what="the dependents do not get on with the wheel",
            cwd=Path(folder),
            env=python_env(PYTHONDONTWRITEBYTECODE="1"),
        )


def private_names(base: Base, gate: Gate) -> None:
    """Hold what the dependents use of core's private names against the patched core.

    Raises:
        PatchsetError: Something that they use is gone, or takes something else.
    """
    stock, patched = guard.definitions(base.stock), guard.offered(base.patched)
    site = site_of(base.env)
    found: list[str] = []
    names: set[str] = set()
    for package in packages(base):
        if not (site / package).is_dir():
            raise PatchsetError(STEP, f"{package} is not installed", where=base.layout.show(site))
        used = guard.uses(site / package)
        names |= guard.of_core(used, stock).keys()
        found += [f"{package}: {problem}" for problem in guard.problems(used, stock, patched)]
    gate.note = f"{count(len(names), 'name')} in {count(len(packages(base)), 'package')}"
    if found or not names:
        raise PatchsetError(
            STEP,
            "released packages use what the patched core no longer offers" if found else "the scan finds nothing",
            output="\n".join(found),
            next="keep the name and what it takes, as patches/README.md asks for",
        )


def run_base(session: Session, layout: Layout, release: Release) -> None:
    """Run the checks of one base."""
    name = release.version
    prepared: list[Base] = []
    if not session.gate(name, "environment", lambda gate: prepared.append(prepare(layout, release))):
        return
    base = prepared[0]
    session.gate(name, "private names", lambda gate: private_names(base, gate))
    layout.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="wheel-", dir=layout.work) as folder:
        wheels: list[Path] = []
        if not session.gate(name, "wheel", lambda gate: wheels.append(patched_wheel(base, Path(folder)))):
            return
        for client, installer in INSTALLERS.items():

            def next_to_it(gate: Gate, client: str = client, installer: Installer = installer) -> None:
                what = count(len(packages(base)), "package")
                install(base, wheels[0], installer, f"{name}: install {what} next to the wheel by {client}")
                gate.note = f"{what} next to {base.release.wheel_version}"

            session.gate(name, f"installed by {client}", next_to_it)


@click.command("dependents", short_help="Install released packages next to the wheel.")
@base_option
@pass_layout
def command(layout: Layout, base: str) -> None:
    """Install released packages that build on core next to the wheel, and check what they use of core."""
    bases = load(layout).resolve(base)
    check_python()
    session = Session()
    for release in bases:
        run_base(session, layout, release)
    sys.exit(session.finish("make dependents"))
