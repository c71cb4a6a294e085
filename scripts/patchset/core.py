"""Core of one commit: its files, its wheel, and the wheel installed by itself, to be put on a path."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from installer import install
from installer.destinations import SchemeDictionaryDestination
from installer.sources import WheelFile

from patchset import console
from patchset.envs import Env
from patchset.paths import CORE, Layout
from patchset.proc import EPOCH, Git, run

STEP = "core"


def export(checkout: Path, commit: str, target: Path, *paths: Path | str) -> None:
    """Write the files of `commit` into the folder `target`, byte for byte and without a trace in the checkout.

    Args:
        checkout: The repository.
        commit: The commit.
        target: The folder to fill.
        paths: Folders and files of the repository to write; all of it when left out.
    """
    target.mkdir(parents=True, exist_ok=True)
    git = Git(checkout, step=STEP)
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        git.run("read-tree", commit, env=index)
        listed = git.run("ls-files", "-z", "--", *paths, env=index).stdout
        git.run("checkout-index", "--prefix", f"{target}{os.sep}", "-z", "--stdin", env=index, input=listed)


def build_wheel(env: Env, project: Path, target: Path, environ: Mapping[str, str] | None = None) -> Path:
    """Build the wheel of the folder `project` with upstream's own backend, and return its path in `target`.

    Args:
        env: The environment that has the backend.
        project: The folder with the `pyproject.toml`.
        target: An empty folder.
        environ: Variables to add.
    """
    run(
        [env.python, "-m", "build", "--wheel", "--no-isolation", "--outdir", target, project],
        step=STEP,
        what="the wheel cannot be built",
        cwd=project,
        env=env.environ(SOURCE_DATE_EPOCH=str(EPOCH), **(environ or {})),
    )
    (wheel,) = target.glob("*.whl")
    return wheel


def install_wheel(wheel: Path, target: Path) -> None:
    """Install a wheel that is nothing but modules into the folder `target`."""
    with WheelFile.open(wheel) as source:
        scheme = {name: str(target) for name in ("purelib", "platlib", "headers", "scripts", "data")}
        destination = SchemeDictionaryDestination(scheme, interpreter="python", script_kind="posix")
        install(source, destination, additional_metadata={})


def core_site(layout: Layout, env: Env, checkout: Path, commit: str) -> Path:
    """Return the folder that has core of `commit` installed, and nothing else; built when it is missing."""
    site = layout.cores / commit
    if site.is_dir():
        return site
    layout.cores.mkdir(parents=True, exist_ok=True)
    with (
        console.step(f"build core of {commit[:12]}"),
        tempfile.TemporaryDirectory(prefix=".making-", dir=layout.cores) as folder,
    ):
        work = Path(folder)
        export(checkout, commit, work / "source", CORE)
        made = work / "site"
        install_wheel(build_wheel(env, work / "source" / CORE, work / "wheel"), made)
        try:
            made.replace(site)
        except OSError:
            if not site.is_dir():  # otherwise somebody else has made the same meanwhile
                raise
            shutil.rmtree(made)
    return site
