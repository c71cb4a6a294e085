"""A hostile configuration of git changes nothing, and nothing of it is run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from patchset.paths import CORE
from patchset.proc import git_env
from support import FIRST, SECOND, Project

HOOKS = ("applypatch-msg", "commit-msg", "post-applypatch", "post-checkout", "post-commit", "pre-applypatch")


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user whose git does everything otherwise; returns the file that tells that a hook has run."""
    home = tmp_path / "home"
    ran = home / "ran"
    hooks = home / "hooks"
    template = home / "template"
    for folder in (hooks, template / "hooks", template / "info", home / ".config" / "git"):
        folder.mkdir(parents=True)
    for folder in (hooks, template / "hooks"):
        for name in HOOKS:
            (folder / name).write_text(f"#!/bin/sh\ntouch '{ran}'\nexit 1\n")
            (folder / name).chmod(0o755)
    (template / "info" / "attributes").write_text("* text eol=crlf\n")
    (home / "message").write_text("A template of a message\n")
    (home / ".gitconfig").write_text(
        "[core]\n  autocrlf = true\n  safecrlf = true\n  whitespace = fix,tab-in-indent\n  quotePath = true\n"
        f"  hooksPath = {hooks}\n  attributesFile = {home}/attributes\n  excludesFile = {home}/ignore\n"
        "  abbrev = 4\n  commentChar = P\n  fileMode = false\n"
        "[commit]\n  gpgSign = true\n  template = " + str(home / "message") + "\n  cleanup = verbatim\n"
        "[tag]\n  gpgSign = true\n[gpg]\n  program = false\n[user]\n  useConfigOnly = true\n  signingKey = x\n"
        "[apply]\n  whitespace = fix\n  ignoreWhitespace = change\n[am]\n  threeWay = true\n  keepcr = false\n"
        "[diff]\n  renames = false\n  noprefix = true\n  mnemonicPrefix = true\n  context = 9\n  algorithm = patience\n"
        "  external = false\n  interHunkContext = 50\n  suppressBlankEmpty = true\n"
        "[format]\n  signature = mine\n  attach = true\n  numbered = true\n  pretty = %s\n"
        "  from = Mine <mine@localhost>\n"
        "  suffix = .txt\n  thread = deep\n  useAutoBase = true\n  coverLetter = true\n  notes = true\n"
        "  subjectPrefix = X\n"
        "  encodeEmailHeaders = true\n  signOff = true\n  filenameMaxLength = 10\n"
        "[i18n]\n  commitEncoding = ISO-8859-1\n  logOutputEncoding = ISO-8859-1\n"
        "[init]\n  defaultBranch = other\n  templateDir = " + str(template) + "\n  defaultObjectFormat = sha256\n"
        "[log]\n  date = relative\n  showSignature = true\n  decorate = full\n"
        "[trailer]\n  separators = %\n[status]\n  showUntrackedFiles = no\n  short = true\n  branch = true\n"
        "[mailinfo]\n  scissors = true\n[rebase]\n  autoStash = true\n[color]\n  ui = always\n[pager]\n  log = false\n"
        '[alias]\n  am = "!false"\n'
    )
    (home / "attributes").write_text("* text eol=crlf\n")
    (home / "ignore").write_text("*\n")
    (home / ".config/git/attributes").write_text("* text eol=crlf\n")
    (home / ".config/git/ignore").write_text("*\n")
    for name, value in (
        ("HOME", str(home)),
        ("XDG_CONFIG_HOME", str(home / ".config")),
        ("GIT_CONFIG_GLOBAL", str(home / ".gitconfig")),
        ("GIT_CONFIG_SYSTEM", str(home / ".gitconfig")),
        ("GIT_CONFIG_NOSYSTEM", "0"),
        ("GIT_CONFIG_PARAMETERS", "'core.autocrlf=true'"),
        ("GIT_DIR", str(home / "nowhere")),
        ("GIT_WORK_TREE", str(home)),
        ("GIT_INDEX_FILE", str(home / "index")),
        ("GIT_TEMPLATE_DIR", str(template)),
        ("GIT_AUTHOR_DATE", "2001-01-01T00:00:00"),
        ("GIT_COMMITTER_NAME", "Mine"),
        ("GIT_DEFAULT_HASH", "sha256"),
        ("GIT_EXTERNAL_DIFF", "false"),
        ("GIT_DIFF_OPTS", "--unified=9"),
        ("GIT_LITERAL_PATHSPECS", "1"),
        ("GIT_TRACE", "2"),
        ("TZ", "Asia/Kathmandu"),
        ("LC_ALL", "C"),
        ("EDITOR", "false"),
    ):
        monkeypatch.setenv(name, value)
    return ran


def made(project: Project) -> tuple[str, dict[str, bytes], dict[str, bytes]]:
    """Apply, change and export, and return the commits, the files of core and the patches."""
    project.series(FIRST, SECOND)
    project.good("apply")
    project.good("export")
    project.good("apply")
    commits = (project.checkout / ".git/refs/heads/patched").read_text()
    core = {path.name: path.read_bytes() for path in project.core_file(".").rglob("*.py")}
    patches = {path.name: path.read_bytes() for path in project.layout.series("1.0").iterdir()}
    return commits, core, patches


def test_a_hostile_git_configuration_changes_nothing(
    project: Project, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "plain").mkdir()
    plain = Project(tmp_path / "plain", project.capsys)
    wanted = made(plain)
    # The same patches, byte for byte, dates included.
    for path in plain.layout.series("1.0").iterdir():
        project.layout.series("1.0").mkdir(exist_ok=True)
        (project.layout.series("1.0") / path.name).write_bytes(path.read_bytes())
    ran = request.getfixturevalue("hostile")
    project.good("apply")
    assert "nothing to change" in project.good("export").out
    assert "nothing to do" in project.good("apply").out
    assert (project.checkout / ".git/refs/heads/patched").read_text() == wanted[0]
    assert {path.name: path.read_bytes() for path in project.core_file(".").rglob("*.py")} == wanted[1]
    assert {path.name: path.read_bytes() for path in project.layout.series("1.0").iterdir()} == wanted[2]
    assert not ran.exists()


@pytest.mark.usefixtures("hostile")
def test_the_hostile_configuration_is_one(tmp_path: Path) -> None:
    """With it, git as a person runs it cannot even commit."""
    env = {name: value for name, value in os.environ.items() if name not in {"GIT_DIR", "GIT_WORK_TREE"}}
    subprocess.run(["git", "init", "--quiet", tmp_path / "repository"], env=env, check=True)
    arguments = ["git", "commit", "--quiet", "--allow-empty", "--message", "x"]
    done = subprocess.run(arguments, cwd=tmp_path / "repository", env=env, check=False, capture_output=True)
    assert done.returncode != 0


@pytest.mark.usefixtures("hostile")
def test_a_dirty_checkout_is_seen_through_a_hostile_configuration(project: Project) -> None:
    project.good("apply")
    project.core_file("agent_framework/_mine.py").write_bytes(b"mine\n")
    assert f"?? {CORE}/agent_framework/_mine.py" in project.bad(2, "apply")


def test_nothing_of_the_users_git_is_inherited() -> None:
    env = git_env({"PATH": "/bin", "GIT_DIR": "/x", "GIT_SSH_COMMAND": "x", "HOME": "/home/x"})
    assert env["PATH"] == "/bin"
    assert "GIT_DIR" not in env
    assert "GIT_SSH_COMMAND" not in env
    assert env["GIT_CONFIG_GLOBAL"] == env["GIT_CONFIG_SYSTEM"] == "/dev/null"
