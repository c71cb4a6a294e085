"""The documents: what they tell a person to type exists, what they link to is there, what they count is so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchset import contract
from patchset.behaviour import files as behaviour_files
from patchset.paths import Layout
from patchset.releases import load

LAYOUT = Layout.discover()
ROOT = LAYOUT.root
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "patches/README.md"])
HOSTS = {"github.com", "keepachangelog.com"}

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())


def blocks(text: str) -> list[str]:
    """Return the fenced blocks, without their fences."""
    return re.findall(r"^```[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def prose(text: str) -> str:
    """Return what is not in a fenced block."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def headings(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", prose(path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def rows(text: str) -> Iterator[list[str]]:
    """Yield the cells of every row of a table."""
    for line in text.splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


@every_document
def test_every_command_of_make_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    typed = [*blocks(text), *re.findall(r"`([^`\n]+)`", prose(text))]
    targets = {target for code in typed for target in re.findall(r"\bmake ([a-z]+)", code)}

    assert targets <= set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))


@every_document
def test_every_link_leads_somewhere(document: Path) -> None:
    broken: list[str] = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(document.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+://", link):
            continue
        name, _, anchor = link.partition("#")
        target = (document.parent / name) if name else document
        if not target.exists() or (anchor and anchor not in headings(target)):
            broken.append(link)

    assert not broken


@every_document
def test_only_public_places_are_named(document: Path) -> None:
    text = document.read_text(encoding="utf-8")

    assert set(re.findall(r"[a-z]+://([^/\s)`>]+)", text)) <= HOSTS
    assert not re.findall(r"(?<![\w.])/(?:home|root|tmp|work|opt|usr)\b", text)


def test_the_readme_begins_with_two_commands() -> None:
    assert blocks((ROOT / "README.md").read_text(encoding="utf-8"))[0] == "make apply\nmake test\n"


def test_the_readme_names_the_served_releases_and_their_wheels() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    served = load(LAYOUT).served
    table = {(row[0], row[1], row[2]) for row in rows(text) if len(row) == 3 and "+turnscope." in row[2]}

    assert table == {(row.version, row.line, f"`{row.wheel_version}`") for row in served}
    assert set(re.findall(r"\d+\.\d+\.\d+\+turnscope\.\d+", text)) == {row.wheel_version for row in served}
    assert f"the source of {load(LAYOUT).default.version} by hash" in text


@pytest.mark.parametrize(("document", "letter"), [("docs/turn-scope.md", "T"), ("docs/compaction.md", "C")])
def test_a_description_has_every_line_of_its_contract_with_its_tests(document: str, letter: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    promised = {line for row in load(LAYOUT).served for line in contract.promised(LAYOUT, row.version)}
    marked = {file.name: contract.marked(LAYOUT, file) for file in behaviour_files(LAYOUT) if file.suffix == ".py"}

    described = {
        row[0].split()[0]: set(re.findall(r"`(test_\w+\.py)`", row[2]))
        for row in rows(text)
        if re.match(rf"{letter}\d+ ", row[0])
    }
    wrong = {
        (line, name) for line, names in described.items() for name in names if line not in marked.get(name, frozenset())
    }

    assert described.keys() == {line for line in promised if line.startswith(letter)}
    assert all(described.values())
    assert not wrong
