"""Lock what an environment is made of: `requirements/<name>.in` to `requirements/<name>.txt`, every file by hash.

A lock names projects, versions and hashes and nothing else: where they come from is a setting of whoever installs it.
"""

from __future__ import annotations

import re
import shlex

import click
from packaging.requirements import InvalidRequirement, Requirement

from patchset import console
from patchset.errors import USAGE, PatchsetError
from patchset.options import for_each, pass_layout
from patchset.paths import Layout
from patchset.uv import uv

STEP = "lock"

_OPTIONS = re.compile(r"^# lock: (.*)$", re.MULTILINE)
_DEFAULTS = ("--python-version", "3.10")
_FORM = (
    *("--universal", "--generate-hashes", "--no-header", "--no-annotate"),
    *("--no-emit-index-url", "--no-emit-find-links", "--no-emit-build-options"),
)
_REQUIRES_CORE = re.compile(r"agent-framework-", re.IGNORECASE)
_HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$")


def problems(text: str) -> list[str]:
    """Return what is wrong with the text of a lock: anything but pinned projects, each with its hashes."""
    found: list[str] = []
    hashed = True
    pinned = 0
    for number, line in enumerate(text.splitlines(), 1):
        if _HASH.match(line):
            hashed = True
            continue
        if not hashed:
            found.append(f"line {number - 1}: no hash")
        hashed = False
        pinned += 1
        try:
            requirement = Requirement(line.removesuffix(" \\"))
        except InvalidRequirement:
            found.append(f"line {number}: neither a project nor a hash: {line}")
            continue
        pins = list(requirement.specifier)
        if requirement.url or len(pins) != 1 or pins[0].operator != "==" or pins[0].version.endswith(".*"):
            found.append(f"line {number}: {requirement.name} is not pinned to one version of an index")
        if requirement.name == "agent-framework-core":
            found.append(f"line {number}: agent-framework-core is put on the path per commit and is in no lock")
    if not hashed:
        found.append("the last line has no hash")
    return found if pinned else [*found, "it locks nothing"]


def compile_lock(layout: Layout, name: str) -> str:
    """Return the text of the lock of `requirements/<name>.in`.

    Projects that require core are locked without their own requirements, everything else with them.
    """
    text = (layout.requirements / f"{name}.in").read_text(encoding="utf-8")
    stated = _OPTIONS.search(text)
    options = shlex.split(stated[1]) if stated else list(_DEFAULTS)
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    dependents = [line for line in lines if _REQUIRES_CORE.match(line)]
    others = [line for line in lines if line not in dependents]
    blocks: list[str] = []
    for part, extra in ((others, ()), (dependents, ("--no-deps",))):
        if not part:
            continue
        done = uv(
            layout,
            *("pip", "compile", "--quiet", *_FORM, *options, *extra, "-"),
            step=STEP,
            what=f"requirements/{name}.in cannot be resolved",
            input="\n".join(part) + "\n",
        )
        blocks += re.split(r"\n(?=\S)", done.stdout.decode().strip())
    return "\n".join(sorted(blocks, key=lambda block: block.partition("=")[0])) + "\n"


def lock(layout: Layout, name: str) -> bool:
    """Write `requirements/<name>.txt` and return whether it changed.

    Raises:
        PatchsetError: There is nothing to lock, it cannot be resolved, or the result is not a lock.
    """
    names = sorted(path.stem for path in layout.requirements.glob("*.in"))
    if name not in names:
        raise PatchsetError(
            STEP,
            f"there is no requirements/{name}.in",
            state=f"there are: {', '.join(names)}",
            next="give one of them as BASE=, or none for all of them",
            exit_code=USAGE,
        )
    with console.step(f"lock requirements/{name}.txt") as progress:
        text = compile_lock(layout, name)
        if wrong := problems(text):
            raise PatchsetError(STEP, f"requirements/{name}.in gives no usable lock", output="\n".join(wrong))
        path = layout.requirements / f"{name}.txt"
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            progress.outcome = "unchanged"
            return False
        draft = path.with_suffix(".draft")
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    return True


@click.command()
@click.option("--base", default="", metavar="NAME", help="One lock: a release or `tools`; every one when left out.")
@pass_layout
def command(layout: Layout, base: str) -> None:
    """Resolve requirements/*.in anew and write the locks."""
    every = sorted(path.stem for path in layout.requirements.glob("*.in"))
    for_each([base] if base and base != "all" else every, lambda name: lock(layout, name))
