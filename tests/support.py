"""A small upstream of its own: source archives made by the test, a table of releases, patches made with plain git."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from patchset import cli
from patchset.paths import CORE, Layout
from patchset.proc import AUTHOR_EMAIL, AUTHOR_NAME

AGENTS = "agent_framework/_agents.py"
NUMBERS = "".join(f"line_{number} = {number}\n" for number in range(1, 61))

CORE_FILES: dict[str, bytes] = {
    "pyproject.toml": b'[project]\nname = "agent-framework-core"\nversion = "1.0.0"\ndescription = "x"\n\n'
    b'[build-system]\nrequires = ["flit_core"]\nbuild-backend = "flit_core.buildapi"\n\n'
    b'[tool.flit.module]\nname = "agent_framework"\n',
    "LICENSE": b"MIT\n",
    "PKG-INFO": b"Metadata-Version: 2.1\nName: agent-framework-core\nVersion: 1.0.0\n",
    "agent_framework/__init__.py": b'"""Core."""\n',
    AGENTS: NUMBERS.encode(),
    "agent_framework/_crlf.py": b"first = 1\r\nsecond = 2\r\nthird = 3\r\n",
    "agent_framework/_open_end.py": b"end = True",
}
WORKSPACE_FILES: dict[str, bytes] = {
    "pyproject.toml": b'[project]\nname = "agent-framework"\nversion = "1.0.0"\ndescription = "x"\n\n'
    b'[build-system]\nrequires = ["flit_core"]\nbuild-backend = "flit_core.buildapi"\n\n'
    b'[tool.flit.module]\nname = "agent_framework_meta"\n',
    "LICENSE": b"MIT\n",
    "PKG-INFO": b"Metadata-Version: 2.1\nName: agent-framework\nVersion: 1.0.0\n",
    "agent_framework_meta/__init__.py": b'"""Meta."""\n',
}


def make_archive(path: Path, files: Mapping[str, bytes], *, modes: Mapping[str, int] | None = None) -> Path:
    """Write a source archive, byte for byte the same whenever it is written."""
    top = path.name.removesuffix(".tar.gz")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size = len(content)
            member.mode = (modes or {}).get(name, 0o644)
            archive.addfile(member, io.BytesIO(content))
    path.write_bytes(gzip.compress(packed.getvalue(), mtime=0))
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def plain_git(cwd: Path, *arguments: str, stdin: bytes | None = None, **env: str) -> str:
    """Git as a person runs it, but for whatever the machine's configuration says."""
    done = subprocess.run(
        ["git", *arguments],
        cwd=cwd,
        env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", **env},
        input=stdin,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, (arguments, done.stderr.decode())
    return done.stdout.decode().rstrip("\n")


@dataclass
class Outcome:
    """What a command of the tooling printed, and its exit status."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Change:
    """One commit to be: what it does to files of core, and what its message says."""

    subject: str
    edits: Mapping[str, bytes | None]
    why: str = "A user meets it.\n\nMore of it."
    tests: str = "packages/core/tests/core/test_it.py::test_it"

    @property
    def message(self) -> str:
        return (
            f"{self.subject}\n\nWhy: {self.why}\n\nWhy a patch: No setting reaches it.\n\nHow: Replace the line.\n\n"
            "Resolves: https://example.invalid/issues/1\n"
            "Upstream-Status: Ready\n"
            "Remove-When: the base has it\n"
            f"Tests: {self.tests}\n"
        )


class Project:
    """A project of its own in a temporary folder, worked on by the tooling's command line."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.layout = Layout(root)
        self.capsys = capsys
        self.published = root / "published"
        for folder in (self.published, self.layout.patches, self.layout.cache):
            folder.mkdir(parents=True)
        self.rows: dict[str, dict[str, object]] = {}
        self.release("1.0.0", line="1.0")

    def release(
        self,
        version: str,
        *,
        line: str | None = None,
        core: Mapping[str, bytes] | None = None,
        workspace: Mapping[str, bytes] | None = None,
        cached: bool = True,
    ) -> None:
        """Publish a release, put it into the table and (unless told not to) into the cache."""
        row: dict[str, object] = {"version": version}
        for prefix, project, files in (
            ("core", "agent_framework_core", CORE_FILES | dict(core or {})),
            ("workspace", "agent_framework", WORKSPACE_FILES | dict(workspace or {})),
        ):
            numbered = {name: content.replace(b"1.0.0", version.encode()) for name, content in files.items()}
            path = make_archive(self.published / f"{project}-{version}.tar.gz", numbered)
            row |= {f"{prefix}_sha256": sha256(path), f"{prefix}_size": path.stat().st_size}
            if cached:
                (self.layout.cache / path.name).write_bytes(path.read_bytes())
        row |= {"ruff": "0.1", "pyright": "1.1", "suite": bool(workspace), "bug_7236": True, "bug_8313": True}
        if line:
            row |= {"line": line, "local": 1}
        self.rows[version] = row
        self.write_table()

    def write_table(self) -> None:
        rows = (
            "\n".join(
                f"{key} = {str(value).lower() if isinstance(value, bool | int) else repr(value)}"
                for key, value in row.items()
            )
            for row in self.rows.values()
        )
        self.layout.releases_toml.write_text("".join(f"[[release]]\n{row}\n\n" for row in rows), encoding="utf-8")

    @property
    def checkout(self) -> Path:
        return self.layout.checkout("1.0.0")

    def core_file(self, name: str = AGENTS) -> Path:
        return self.checkout / CORE / name

    def git(self, *arguments: str, **env: str) -> str:
        """Run plain git in the checkout of 1.0.0."""
        for role in ("AUTHOR", "COMMITTER"):
            env.setdefault(f"GIT_{role}_NAME", "Somebody")
            env.setdefault(f"GIT_{role}_EMAIL", "somebody@example.invalid")
        return plain_git(self.checkout, *arguments, stdin=None, **env)

    def run(self, *arguments: str) -> Outcome:
        """Run a command of the tooling."""
        self.capsys.readouterr()
        code = 0
        try:
            cli.main(["--root", str(self.layout.root), *arguments])
        except SystemExit as left:
            code = int(left.code or 0)
        printed = self.capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    def good(self, *arguments: str) -> Outcome:
        """Run a command that must succeed."""
        outcome = self.run(*arguments)
        assert outcome.code == 0, outcome.err
        return outcome

    def bad(self, code: int, *arguments: str) -> str:
        """Run a command that must fail with `code`, and return its one message."""
        outcome = self.run(*arguments)
        assert outcome.code == code, (outcome.out, outcome.err)
        assert "Traceback" not in outcome.err
        return outcome.err

    def series(self, *changes: Change, line: str = "1.0", on: Mapping[str, bytes] | None = None) -> list[Path]:
        """Write the series of a line with plain git: each change is a commit on a base with core's files."""
        folder = self.layout.series(line)
        folder.mkdir(exist_ok=True)
        for old in folder.glob("*.patch"):
            old.unlink()
        scratch = self.layout.root / "scratch"
        plain_git(self.layout.root, "init", "--quiet", str(scratch))
        (scratch / ".git/info/attributes").write_text("* -text\n")
        commit = ("-c", f"user.name={AUTHOR_NAME}", "-c", f"user.email={AUTHOR_EMAIL}", "commit", "--quiet", "--file=-")
        self._write(scratch, CORE_FILES | dict(on or {}))
        plain_git(scratch, "add", "--all")
        plain_git(scratch, *commit, stdin=b"base")
        base = plain_git(scratch, "rev-parse", "HEAD")
        for change in changes:
            self._write(scratch, change.edits)
            plain_git(scratch, "add", "--all")
            plain_git(scratch, *commit, stdin=change.message.encode())
        plain_git(scratch, "format-patch", "--quiet", "--keep-subject", "-o", str(folder), base)
        shutil.rmtree(scratch)
        return sorted(folder.glob("*.patch"))

    @staticmethod
    def _write(scratch: Path, files: Mapping[str, bytes | None]) -> None:
        for name, content in files.items():
            if name == "PKG-INFO":
                continue
            path = scratch / CORE / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.unlink()
            else:
                path.write_bytes(content)


def edited(**lines: str) -> bytes:
    """Return the numbers file with some lines replaced, by their names."""
    text = NUMBERS
    for name, value in lines.items():
        number = name.removeprefix("line_")
        text = text.replace(f"line_{number} = {number}\n", f"line_{number} = {value}\n")
    return text.encode()


FIRST = Change("Python: Change the fifth line", {AGENTS: edited(line_5="'five'")}, why="The fifth line is dull.")
SECOND = Change(
    "Python: Change the fortieth line",
    {AGENTS: edited(line_5="'five'", line_40="'forty'")},
    why="The fortieth line is dull,\nvery.\n\nMore.",
)
