"""`make wheel`: the patched core as a wheel whose version says so, the same bytes wherever it is built."""

from __future__ import annotations

import email
import hashlib
import re
import tarfile
import tempfile
import zipfile
from email.message import Message
from pathlib import Path, PurePosixPath

import click
from installer.sources import WheelFile

from patchset import console, smoke
from patchset.core import build_wheel, export
from patchset.envs import Env, check_python
from patchset.errors import PatchsetError
from patchset.fetch import core_archive, fetch_archive
from patchset.options import base_option, for_each, pass_layout
from patchset.paths import CORE, Layout
from patchset.prepared import Base, prepare
from patchset.releases import Release, load

STEP = "wheel"
SUMS = "SHA256SUMS"

_VERSION = re.compile(rb'^version = "([^"]*)"$', re.MULTILINE)
_SAME = ("Name", "Summary", "Requires-Python", "Requires-Dist", "Provides-Extra", "License-File", "Author-email")


def set_version(project: Path, old: str, new: str) -> None:
    """Replace the version in a `pyproject.toml`.

    Raises:
        PatchsetError: The file does not state the old version, once.
    """
    path = project / "pyproject.toml"
    text = path.read_bytes()
    if _VERSION.findall(text) != [old.encode()]:
        raise PatchsetError(STEP, f'pyproject.toml does not say version = "{old}", once', where=str(path))
    path.write_bytes(_VERSION.sub(f'version = "{new}"'.encode(), text))


def build_twice(env: Env, checkout: Path, commit: str, old: str, new: str, folder: Path) -> Path:
    """Build the wheel of a commit in two places and in two ways that must not matter, and return the one.

    Args:
        env: The environment with the build backend.
        checkout: The repository.
        commit: The commit.
        old: The version that the source states.
        new: The version of the wheel.
        folder: An empty folder, for the copies that the version is set in.

    Raises:
        PatchsetError: The two differ.
    """
    wheels: list[Path] = []
    for name, variables in (
        ("first", {"TZ": "UTC", "LC_ALL": "C", "PYTHONHASHSEED": "1"}),
        ("second-in-another/place", {"TZ": "Pacific/Kiritimati", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "2"}),
    ):
        source = folder / name
        export(checkout, commit, source, CORE)
        set_version(source / CORE, old, new)
        wheels.append(build_wheel(env, source / CORE, source / "wheel", variables))
    first, second = wheels
    if first.read_bytes() != second.read_bytes():
        different = ", ".join(_members_that_differ(first, second)) or "the archives themselves"
        raise PatchsetError(STEP, f"{first.name} is not the same when built twice", state=f"they differ in {different}")
    return first


def _members_that_differ(first: Path, second: Path) -> list[str]:
    with zipfile.ZipFile(first) as one, zipfile.ZipFile(second) as other:
        names = sorted({*one.namelist(), *other.namelist()})
        return [
            name
            for name in names
            if not (name in one.namelist() and name in other.namelist()) or one.read(name) != other.read(name)
        ]


def published_metadata(layout: Layout, release: Release) -> Message:
    """Return the metadata that upstream published with the release."""
    archive = core_archive(release)
    with tarfile.open(fetch_archive(layout, archive)) as opened:
        member = opened.extractfile(f"{archive.stem}/PKG-INFO")
        if member is None:
            raise PatchsetError(STEP, f"{archive.filename} has no PKG-INFO")
        return email.message_from_bytes(member.read())


def check_wheel(wheel: Path, published: Message, version: str, source: Path) -> list[str]:
    """Return what is wrong with a wheel.

    Args:
        wheel: The wheel.
        published: What upstream published of the release.
        version: The version it must have.
        source: The core package that it was built from.
    """
    found: list[str] = []
    with WheelFile.open(wheel) as opened:
        try:
            opened.validate_record()
        except ValueError as error:
            found.append(f"RECORD: {error}")
        metadata = email.message_from_string(opened.read_dist_info("METADATA"))
    if metadata["Version"] != version:
        found.append(f"Version is {metadata['Version']}, not {version}")
    for name in _SAME:
        ours, theirs = metadata.get_all(name, []), published.get_all(name, [])
        if ours != theirs:
            found.append(f"{name} is {ours}, upstream published {theirs}")
    info = f"{wheel.name.partition('-py3')[0]}.dist-info"
    wanted = {
        PurePosixPath(path.relative_to(source)): path.read_bytes()
        for path in (source / "agent_framework").rglob("*")
        if path.is_file()
    }
    wanted[PurePosixPath(info, "licenses", "LICENSE")] = (source / "LICENSE").read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        has = {PurePosixPath(name): archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    made = {PurePosixPath(info, name) for name in ("METADATA", "RECORD", "WHEEL")}
    found += [f"{name} is missing" for name in sorted(wanted.keys() - has.keys())]
    found += [f"{name} is not in the source" for name in sorted(has.keys() - wanted.keys() - made)]
    found += [
        f"{name} is not what the source has" for name in sorted(wanted.keys() & has.keys()) if wanted[name] != has[name]
    ]
    return found


def write_sums(dist: Path) -> None:
    """Write the digests of all wheels into `SHA256SUMS`, as `sha256sum --check` reads them."""
    lines = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(dist.glob("*.whl")))
    draft = dist / f".{SUMS}"
    draft.write_text("".join(lines), encoding="utf-8")
    draft.replace(dist / SUMS)


def publish(layout: Layout, release: Release, wheel: Path) -> Path:
    """Put a wheel into `dist`, in place of an earlier one of the same release, and return its path there."""
    layout.dist.mkdir(exist_ok=True)
    target = layout.dist / wheel.name
    wheel.replace(target)
    for earlier in layout.dist.glob(f"agent_framework_core-{release.version}+turnscope.*.whl"):
        if earlier != target:
            earlier.unlink()
    write_sums(layout.dist)
    return target


def make_wheel(base: Base) -> tuple[Path, list[str]]:
    """Build, compare, check and try the wheel of a base; only what has passed all of it gets into `dist`.

    Returns:
        The wheel, and the Python versions that it was tried on.

    Raises:
        PatchsetError: It is not the same when built twice, is not what it should be, or does not do what it should.
    """
    layout, release, version = base.layout, base.release, base.release.wheel_version
    layout.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="wheel-", dir=layout.work) as folder:
        with console.step(f"{base.name}: build {version} twice and compare"):
            wheel = build_twice(base.env, base.checkout, base.applied.commit, base.name, version, Path(folder))
            published = published_metadata(layout, release)
            if problems := check_wheel(wheel, published, version, Path(folder) / "first" / CORE):
                raise PatchsetError(STEP, f"{wheel.name} is not what it should be", output="\n".join(problems))
        tried = smoke.try_wheel(layout, release, wheel)
        return publish(layout, release, wheel), tried


@click.command("wheel", short_help="Build the patched core as a wheel, and try it.")
@base_option
@pass_layout
def command(layout: Layout, base: str) -> None:
    """Build the wheel twice, compare and check it, install it into clean environments and exercise it there."""
    bases = load(layout).resolve(base)
    check_python()

    def one(release: Release) -> None:
        wheel, tried = make_wheel(prepare(layout, release))
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        console.say(f"{layout.show(wheel)}, exercised on Python {', '.join(tried)}\n  sha256 {digest}")

    for_each(bases, one)
