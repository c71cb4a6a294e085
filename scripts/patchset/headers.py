"""The grammar of a patch header, as patches/README.md has it."""

from __future__ import annotations

import re

from patchset.proc import AUTHOR_EMAIL, AUTHOR_NAME
from patchset.series import SECTIONS, Patch

TRAILERS = ("Resolves", "Upstream-Status", "Remove-When", "Tests")

_SUBJECT = re.compile(r"Python: (\[[A-Z ]+\] )?[A-Z`].*[^.]")
_SUBJECT_WIDTH = 100
_RESOLVES = re.compile(r"https://\S+|none \(.+\)", re.DOTALL)
_STATUS = re.compile(r"Ready|Submitted \[\S+\]|Merged \[\S+, \S+\]|Inappropriate \[.+\]", re.DOTALL)
_FORMS = "Ready, Submitted [<pull request>], Merged [<pull request>, <release>] or Inappropriate [<why>]"


def problems(patch: Patch) -> list[str]:
    """Return what is wrong with the header of a patch, but for what its tests are."""
    found: list[str] = []
    if not _SUBJECT.fullmatch(patch.subject):
        found.append(f"the subject is not `Python: ` and a sentence without a full stop: {patch.subject}")
    if len(patch.subject) > _SUBJECT_WIDTH:
        found.append(f"the subject is longer than {_SUBJECT_WIDTH} characters")
    if patch.author != f"{AUTHOR_NAME} <{AUTHOR_EMAIL}>":
        found.append(f"the author is {patch.author}, not the project")
    sections = [name for name in patch.sections if name]
    if "" in patch.sections:
        found.append(f"the body begins outside of a section: {patch.sections[''].splitlines()[0]}")
    elif sections != list(SECTIONS):
        found.append(f"the sections are {', '.join(sections) or 'none'}, not {', '.join(SECTIONS)}")
    found += [f"the section {name} is empty" for name in sections if not patch.sections[name]]
    for key in dict.fromkeys(key for key, _ in patch.trailers if key not in TRAILERS):
        found.append(f"{key}: is no trailer of a patch")
    for key in TRAILERS:
        values = patch.trailer(key)
        if not values:
            found.append(f"{key}: is missing")
        elif len(values) > 1 and key in {"Upstream-Status", "Remove-When"}:
            found.append(f"{key}: is there {len(values)} times")
    found += [
        f"Resolves: {value} is no address and no `none (<why>)`"
        for value in patch.trailer("Resolves")
        if not _RESOLVES.fullmatch(value)
    ]
    found += [
        f"Upstream-Status: {value} is not {_FORMS}"
        for value in patch.trailer("Upstream-Status")
        if not _STATUS.fullmatch(value)
    ]
    return found
