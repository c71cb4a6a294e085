"""`make export`: canonical, and the inverse of `make apply`."""

from __future__ import annotations

import shutil
import string
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from patchset.base import BASE_REF, init_repository
from patchset.export import applied, canonical, format_series
from patchset.proc import Git
from patchset.series import load_patch
from support import AGENTS, FIRST, NUMBERS, SECOND, Change, Project, edited, plain_git


def series_files(project: Project) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in project.layout.series("1.0").glob("*.patch")}


def exported(project: Project) -> dict[str, bytes]:
    """Apply and export what the fixture wrote with plain git."""
    project.good("apply")
    project.good("export")
    return series_files(project)


def test_the_form_is_canonical(project: Project) -> None:
    project.series(FIRST)
    name = "0001-Python-Change-the-fifth-line.patch"
    text = exported(project)[name].decode()
    head, _, diff = text.partition("\n---\n")
    first, *header = head.split("\n\n")[0].splitlines()
    assert first == "From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001"
    assert header[0] == "From: agent-framework turnscope <turnscope@localhost>"
    assert header[1].startswith("Date: ")
    assert header[2:] == ["Subject: Python: Change the fifth line"]
    assert "\nindex " in diff
    index = next(line for line in diff.splitlines() if line.startswith("index "))
    assert [len(part) for part in index.split()[1].split("..")] == [40, 40]
    assert diff.startswith("\ndiff --git a/"), "no summary of changes"
    assert text.endswith("\n line_8 = 8\n"), "no signature"
    trailers = plain_git(project.layout.series("1.0"), "interpret-trailers", "--parse", name)
    assert trailers.splitlines() == FIRST.message.splitlines()[-4:]


def test_applying_and_exporting_again_changes_nothing(project: Project) -> None:
    project.series(FIRST, SECOND)
    files = exported(project)
    project.good("apply")
    assert project.good("export").out == "patches/1.0: 2 patches, nothing to change\n"
    assert series_files(project) == files
    assert "nothing to do" in project.good("apply").out


def test_a_change_by_hand_becomes_a_patch_of_the_project(project: Project) -> None:
    project.series(FIRST)
    exported(project)
    project.core_file().write_bytes(edited(line_5="'five'", line_40="'mine'"))
    project.git(
        "commit", "--quiet", "--all", "--message", "Python: Zeile vierzig ändern\n\n\n  x  \n\nResolves: none (x)"
    )
    tree = project.git("rev-parse", "HEAD^{tree}")
    assert project.good("export").out == "patches/1.0: 2 patches, 1 new (0002-Python-Zeile-vierzig-ndern.patch)\n"
    text = series_files(project)["0002-Python-Zeile-vierzig-ndern.patch"].decode()
    assert "From: agent-framework turnscope <turnscope@localhost>\n" in text
    assert "Subject: Python: Zeile vierzig ändern\n" in text
    assert "somebody" not in text.lower()
    assert project.git("rev-parse", "HEAD^{tree}") == tree
    assert "nothing to do, 2 patches" in project.good("apply").out


def test_a_changed_and_a_removed_patch(project: Project) -> None:
    project.series(FIRST, SECOND, Change("Python: Change the last", {AGENTS: edited(line_60="0")}))
    exported(project)
    project.git("reset", "--quiet", "--hard", "HEAD~2")
    project.core_file().write_bytes(edited(line_5="5.5"))
    project.git("commit", "--quiet", "--all", "--amend", "--no-edit")
    out = project.good("export").out
    assert "1 changed (0001-Python-Change-the-fifth-line.patch), 2 removed (0002-" in out
    assert sorted(series_files(project)) == ["0001-Python-Change-the-fifth-line.patch"]


def test_patch_files_changed_by_hand_are_not_written_over(project: Project) -> None:
    project.series(FIRST)
    exported(project)
    path = next(iter(project.layout.series("1.0").glob("*.patch")))
    changed = path.read_text().replace("Why: The fifth line is dull.", "Why: The fifth line is very dull.")
    path.write_text(changed)
    message = project.bad(2, "export")
    assert (
        "patches/1.0 has changed since it was applied to build/checkouts/1.0.0; nothing is written over it" in message
    )
    assert "next:  take the files as they are: make apply BASE=1.0.0, then the same command again" in message
    assert path.read_text() == changed
    project.good("apply")
    assert "nothing to change" in project.good("export").out
    assert path.read_text() == changed


def test_other_files_of_the_folder_stay(project: Project) -> None:
    project.series(FIRST)
    (project.layout.series("1.0") / "expected-changes.toml").write_text("# none\n")
    exported(project)
    assert (project.layout.series("1.0") / "expected-changes.toml").read_text() == "# none\n"


@pytest.mark.parametrize(
    ("prepare", "what"),
    [
        ("touch", "has uncommitted changes"),
        ("branch", "is on the branch mine, not on patched"),
        ("merge", "is a merge, a series is a straight line"),
        ("empty", "changes nothing: Nothing"),
        ("elsewhere", "the base is not among the ancestors of the checkout"),
    ],
)
def test_a_checkout_that_is_no_series_is_refused(project: Project, prepare: str, what: str) -> None:
    project.series(FIRST)
    files = exported(project)
    if prepare == "touch":
        project.core_file().write_bytes(b"mine\n")
    elif prepare == "branch":
        project.git("checkout", "--quiet", "-b", "mine")
    elif prepare == "merge":
        project.git("checkout", "--quiet", "-b", "side", "HEAD~1")
        project.core_file("side.py").write_bytes(b"side\n")
        project.git("add", "--all")
        project.git("commit", "--quiet", "--message", "Side")
        project.git("checkout", "--quiet", "patched")
        project.git("merge", "--quiet", "--no-edit", "side")
    elif prepare == "empty":
        project.git("commit", "--quiet", "--allow-empty", "--message", "Nothing")
    else:
        project.git("checkout", "--quiet", "--orphan", "other")
        project.git("commit", "--quiet", "--message", "Other")
        project.git("branch", "--force", "patched", "other")
        project.git("checkout", "--quiet", "patched")
    before = project.git("rev-parse", "HEAD")
    message = project.bad(2, "export")
    assert what in message
    assert "next:" in message
    assert series_files(project) == files
    assert project.git("rev-parse", "HEAD") == before


def test_without_a_checkout_it_says_how_to_get_one(project: Project) -> None:
    assert "next:  make apply BASE=1.0.0" in project.bad(2, "export")


def test_only_the_release_that_a_line_is_written_on_is_exported(project: Project) -> None:
    project.series(FIRST)
    project.release("1.1.0", line="1.0")
    project.good("apply", "--base", "all")
    message = project.bad(2, "export", "--base", "1.0.0")
    assert "the 1.0 line is written on 1.1.0, not on 1.0.0" in message
    assert "make export BASE=1.1.0" in message
    assert project.good("export", "--base", "all").out.startswith("patches/1.0: 1 patch, 1 changed")


def test_a_message_that_cannot_be_said_in_a_patch_is_refused(project: Project) -> None:
    project.series(FIRST)
    files = exported(project)
    project.core_file().write_bytes(b"mine\n")
    project.git("commit", "--quiet", "--all", "--message", "Python: Cut\n\nWhy: x\n\n---\n\ncut off")
    message = project.bad(1, "export")
    assert "the patches do not give the same commits when they are applied again" in message
    assert "is cut there" in message
    assert series_files(project) == files


# Generated histories

LINE_ENDS = st.sampled_from(["\n", "\r\n"])
WORDS = st.text(string.ascii_letters + string.digits + "äßéЖ漢字🙂.,:-'\"()[]#%", min_size=1, max_size=12)
LINES = st.lists(
    st.one_of(
        WORDS,
        st.sampled_from(
            ["", " ", "\t", "From 0 Mon Sep 17 00:00:00 2001", "---", "-- ", "diff --git a/x b/x", "@@ -1 +1 @@"]
        ),
    ),
    max_size=12,
)
NAMES = st.sampled_from(["plain.py", "ordner/größe.py", "two words.txt", "deep/er/漢字.md", "script.sh", "-dash.txt"])


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    if draw(st.sampled_from([False, False, False, True])):
        return b"\0" + draw(st.binary(max_size=40))
    end = draw(LINE_ENDS)
    text = "".join(line + end for line in draw(LINES))
    # The last line may have no end.
    return (text if draw(st.booleans()) else text.removesuffix(end)).encode()


@dataclass(frozen=True)
class Step:
    """What one commit does."""

    message: str
    write: Mapping[str, bytes]
    rename: tuple[str, str] | None
    executable: str | None
    remove: str | None
    identity: str = field(default="Jemand Ändres")


def plain_line(text: str) -> bool:
    """Whether a line of a message cannot be taken for the start of a diff or a header."""
    return not text.startswith(("---", "diff -", "Index: ", "From", "Date:", "Subject:", ">", "--"))


@st.composite
def messages(draw: st.DrawFn) -> str:
    words = st.lists(WORDS, min_size=1, max_size=14).map(" ".join).filter(plain_line)
    subject = draw(st.sampled_from(["Python: ", "[BREAKING] Python: ", "Re: "])) + draw(words)
    paragraphs = draw(st.lists(st.lists(words, min_size=1, max_size=3).map("\n".join), max_size=3))
    trailers = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["Resolves", "Tests", "Remove-When", "Upstream-Status"]), words, st.none() | words
            ),
            max_size=3,
        )
    )
    block = "\n".join(f"{key}: {value}" + (f"\n {more}" if more else "") for key, value, more in trailers)
    return "\n\n".join([subject, *paragraphs, *([block] if block else [])])


STEPS = st.lists(
    st.builds(
        Step,
        messages(),
        st.dictionaries(NAMES, contents(), max_size=3),
        st.none() | st.tuples(NAMES, NAMES),
        st.none() | NAMES,
        st.none() | NAMES,
    ),
    min_size=1,
    max_size=4,
)


@pytest.fixture(scope="module")
def base_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base with files of every kind."""
    folder = tmp_path_factory.mktemp("base")
    git = init_repository(folder)
    for name, content in {
        "plain.py": NUMBERS.encode(),
        "two words.txt": NUMBERS.replace("\n", "\r\n").encode(),
        "script.sh": b"#!/bin/sh\ntrue",
    }.items():
        (folder / name).write_bytes(content)
    git("add", "--all")
    git("commit", "--quiet", "--message", "base")
    git("update-ref", BASE_REF, "HEAD")
    return folder


def commit(folder: Path, step: Step) -> bool:
    """Make the commit with plain git; say whether there was anything to commit."""
    if step.rename:
        old, new = (folder / name for name in step.rename)
        if old.exists() and not new.exists():
            new.parent.mkdir(parents=True, exist_ok=True)
            old.rename(new)
    if step.remove:
        (folder / step.remove).unlink(missing_ok=True)
    for name, content in step.write.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    if step.executable and (folder / step.executable).exists():
        mode = (folder / step.executable).stat().st_mode
        (folder / step.executable).chmod(mode ^ 0o111)
    plain_git(folder, "add", "--all")
    if not plain_git(folder, "diff", "--cached", "--name-only"):
        return False
    identity = {"NAME": step.identity, "EMAIL": "jemand@example.invalid", "DATE": "2026-02-03T04:05:06+0530"}
    env = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in identity.items()}
    plain_git(folder, "commit", "--quiet", "--file=-", stdin=step.message.encode(), **env)
    return True


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(steps=STEPS)
def test_export_is_the_inverse_of_apply(base_repository: Path, steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "checkout"
        shutil.copytree(base_repository, folder)
        assume(any([commit(folder, step) for step in steps]))  # noqa: C419 - every step is to be made
        git = Git(folder, step="export")
        base, theirs = git("rev-parse", BASE_REF), git("rev-parse", "HEAD")

        tip = canonical(git, base, theirs, shown="checkout")
        files = format_series(git, base, tip)

        # The same trees and messages, whoever made the commits.
        for form in ("%T", "%B", "%ad"):
            history = [git("log", f"--format={form}", f"{base}..{end}") for end in (theirs, tip)]
            assert history[0] == history[1]
        # On another machine the patches give the commits they were made from, and these give the patches.
        elsewhere = Path(temporary) / "elsewhere"
        shutil.copytree(base_repository, elsewhere)
        assert applied(Git(elsewhere, step="export"), base, files) == tip
        assert canonical(git, base, tip, shown="checkout") == tip
        assert format_series(git, base, tip) == files
        # Every patch can be read.
        for number, (name, content) in enumerate(files.items(), 1):
            path = Path(temporary) / name
            path.write_bytes(content)
            patch = load_patch(path, number, len(files))
            commits = git("rev-list", "--reverse", f"{base}..{tip}").splitlines()
            assert patch.subject == git("show", "--no-patch", "--format=%s", commits[number - 1])
            assert {file.path for file in patch.files()} <= set(
                git("diff-tree", "-r", "--no-commit-id", "--name-only", commits[number - 1]).splitlines()
            )
