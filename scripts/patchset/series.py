"""Read a series: the patch files of a line in their order, what their headers say and which files they touch."""

from __future__ import annotations

import hashlib
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchSet

from patchset.errors import PatchsetError
from patchset.paths import Layout
from patchset.proc import git_env, run

STEP = "series"
SECTIONS = ("Why", "Why a patch", "How")

_SECTION = re.compile(r"(Why|Why a patch|How):(?: |\n|$)")


@dataclass(frozen=True)
class Patch:
    """One patch file."""

    path: Path
    index: int
    total: int
    author: str
    subject: str
    sections: dict[str, str]
    trailers: tuple[tuple[str, str], ...]
    diff: bytes

    @property
    def name(self) -> str:
        """How messages call the patch."""
        return f"patch {self.index} of {self.total} ({self.path.name}): {self.subject}"

    @property
    def why(self) -> str | None:
        """The first paragraph of its Why, in one line."""
        text = self.sections.get("Why")
        return " ".join(text.split("\n\n", 1)[0].split()) if text else None

    def trailer(self, key: str) -> list[str]:
        """Return the values of the trailer `key`."""
        return [value for name, value in self.trailers if name == key]

    def files(self) -> PatchSet:
        """Return the changes by file and hunk.

        Raises:
            PatchsetError: The diff cannot be read.
        """
        try:
            return PatchSet(self.diff.decode("utf-8", "surrogateescape"))
        except UnidiffParseError as error:
            raise PatchsetError(STEP, f"{self.name}: its diff cannot be read: {error}", where=str(self.path)) from error


def series_paths(layout: Layout, line: str) -> list[Path]:
    """Return the patch files of `line` in their order."""
    return sorted(layout.series(line).glob("*.patch"))


def series_digest(paths: list[Path]) -> str:
    """Return the names and bytes of patch files as one digest."""
    digest = hashlib.sha256()
    for path in paths:
        content = path.read_bytes()
        digest.update(f"{path.name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def load_series(layout: Layout, line: str) -> list[Patch]:
    """Read the patches of `line`.

    Raises:
        PatchsetError: A file is not a patch.
    """
    paths = series_paths(layout, line)
    return [load_patch(path, number, len(paths)) for number, path in enumerate(paths, 1)]


def load_patch(path: Path, index: int, total: int) -> Patch:
    """Read one patch file, with the eyes of `git am`.

    Raises:
        PatchsetError: The file is not a patch.
    """
    with tempfile.TemporaryDirectory() as folder:
        message, diff = Path(folder) / "message", Path(folder) / "diff"
        arguments = ["git", "mailinfo", "-k", "--encoding=UTF-8", message, diff]
        done = run(
            arguments,
            step=STEP,
            what=f"patch {index} of {total} ({path.name}) is not a patch",
            cwd=path.parent,
            env=git_env(),
            input=path.read_bytes(),
        )
        fields = (line.partition(": ") for line in done.stdout.decode("utf-8", "replace").splitlines())
        head = {name: value for name, _, value in fields}
        body = message.read_text(encoding="utf-8", errors="replace")
        content = diff.read_bytes()
    if not content.strip() or "Subject" not in head:
        raise PatchsetError(
            STEP,
            f"patch {index} of {total} ({path.name}) is not a patch: it has no "
            + ("change" if "Subject" in head else "subject"),
            where=str(path),
        )
    sections, trailers = _split(body, path.parent)
    author = f"{head.get('Author', '')} <{head.get('Email', '')}>"
    return Patch(path, index, total, author, head["Subject"], sections, trailers, content)


def _split(body: str, cwd: Path) -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
    printed = run(
        ["git", "interpret-trailers", "--parse"],
        step=STEP,
        what="the trailers cannot be read",
        cwd=cwd,
        env=git_env(),
        # The subject stands between, as in the commit: trailers are never the first paragraph.
        input=f"subject\n\n{body}".encode(),
    ).stdout.decode("utf-8", "replace")
    trailers = tuple((key, value.strip()) for key, _, value in (line.partition(":") for line in printed.splitlines()))
    paragraphs = [paragraph for paragraph in body.strip().split("\n\n") if paragraph.strip()]
    if trailers:
        paragraphs.pop()
    sections: dict[str, str] = {}
    current = None
    for paragraph in paragraphs:
        if found := _SECTION.match(paragraph):
            current = found[1]
            sections[current] = paragraph[found.end() :].strip()
        elif current:
            sections[current] += f"\n\n{paragraph}"
        else:
            sections[""] = paragraph
    return sections, trailers
