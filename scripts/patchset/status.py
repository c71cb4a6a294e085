"""`make status`: the patches of every line with their size and upstream status, and which releases are served."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import click

from patchset import console
from patchset.options import count, pass_layout
from patchset.paths import Layout
from patchset.releases import Releases, load
from patchset.series import Patch, load_series


@dataclass(frozen=True)
class PatchStatus:
    """What is to be known of one patch."""

    file: str
    subject: str
    files: int
    added: int
    removed: int
    upstream_status: str
    resolves: list[str]
    remove_when: str
    tests: list[str]


@dataclass(frozen=True)
class LineStatus:
    """What is to be known of one line."""

    line: str
    releases: list[str]
    wheels: list[str]
    written_on: str | None
    patches: list[PatchStatus]


@dataclass(frozen=True)
class Status:
    """What is to be known of the patch set."""

    default: str | None
    lines: list[LineStatus]
    known: list[str]
    """Releases that are known and not served."""


def patch_status(patch: Patch) -> PatchStatus:
    """Read off one patch what is to be known."""
    files = patch.files()
    return PatchStatus(
        file=patch.path.name,
        subject=patch.subject,
        files=len(files),
        added=files.added,
        removed=files.removed,
        upstream_status=" ".join(patch.trailer("Upstream-Status")),
        resolves=patch.trailer("Resolves"),
        remove_when=" ".join(patch.trailer("Remove-When")),
        tests=[test for value in patch.trailer("Tests") for test in ([value] if " (" in value else value.split())],
    )


def status(layout: Layout, releases: Releases) -> Status:
    """Read off the table and the series what is to be known of the patch set."""
    served = releases.lines()
    folders = {path.name for path in layout.patches.iterdir() if path.is_dir()}
    lines = [
        LineStatus(
            line=line,
            releases=[row.version for row in served.get(line, [])],
            wheels=[row.wheel_version for row in served.get(line, [])],
            written_on=served[line][-1].version if line in served else None,
            patches=[patch_status(patch) for patch in load_series(layout, line)],
        )
        # By version, and folders that serve nothing after the rest.
        for line in [*served, *sorted(folders - served.keys())]
    ]
    return Status(
        default=releases.default.version if releases.served else None,
        lines=lines,
        known=[row.version for row in releases.rows if row.line is None],
    )


def short(address: str) -> str:
    """Return an issue's address as people call it, such as `#7236`."""
    *_, kind, number = ["", *address.rstrip("/").split("/")]
    return f"#{number}" if kind in {"issues", "pull"} else address


@click.command("status", short_help="List the patches of every line and the served releases.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@pass_layout
def command(layout: Layout, as_json: bool) -> None:
    """List the patches of every line with size, upstream status and what they resolve, and the served releases."""
    found = status(layout, load(layout))
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2, ensure_ascii=False))
        return
    for line in found.lines:
        serves = f"serves {', '.join(line.wheels)}, written on {line.written_on}" if line.releases else "serves nothing"
        added, removed = sum(patch.added for patch in line.patches), sum(patch.removed for patch in line.patches)
        title = f"{line.line}: {count(len(line.patches), 'patch')} (+{added} -{removed}), {serves}"
        if not line.patches:
            console.say(title)
            continue
        console.table(
            title,
            ["patch", "files", "+", "-", "upstream status", "resolves"],
            [
                [
                    f"{number} {patch.subject}",
                    str(patch.files),
                    str(patch.added),
                    str(patch.removed),
                    patch.upstream_status,
                    ", ".join(short(address) for address in patch.resolves),
                ]
                for number, patch in enumerate(line.patches, 1)
            ],
        )
    console.say(f"known, not served: {', '.join(found.known) or 'none'}")
    console.say(f"without BASE=: {found.default or 'nothing, as no release is served'}")
