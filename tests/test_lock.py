"""A lock names projects, versions and hashes, and nothing that only one machine has."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from patchset import releases
from patchset.lock import problems
from patchset.paths import Layout
from support import Project, sha256

HASH = "    --hash=sha256:" + "0" * 64
LOCKS = sorted(Layout.discover().requirements.glob("*.txt"))


def make_wheel(folder: Path, name: str, version: str, *requires: str) -> Path:
    """Write the smallest wheel that an installer takes."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{name}/__init__.py": "",
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {other}\n" for other in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {path: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()) for path, text in files.items()}
    record = [f"{path},sha256={digest.decode().rstrip('=')},{len(files[path])}" for path, digest in digests.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""])
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, text in files.items():
            wheel.writestr(member, text)
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index in a folder that is all uv knows of, by a configuration of which nothing else is used."""
    folder = tmp_path / "index"
    for name, version, *requires in (
        ("leaf", "1.0"),
        ("leaf", "2.0"),
        ("branch", "1.0", "leaf>=1"),
        ("agent_framework_extra", "3.0", "agent-framework-core>=99", "branch"),
    ):
        project = folder / name.replace("_", "-")
        project.mkdir(parents=True, exist_ok=True)
        make_wheel(project, name, version, *requires)
        links = (f'<a href="{wheel.name}#sha256={sha256(wheel)}">{wheel.name}</a>' for wheel in project.glob("*.whl"))
        (project / "index.html").write_text(f"<!DOCTYPE html><html><body>{' '.join(links)}</body></html>")
    settings = tmp_path / "uv.toml"
    settings.write_text(f"""
        index-url = "{folder.as_uri()}"
        resolution = "lowest"
        [pip]
        no-deps = true
        generate-hashes = false
    """)
    monkeypatch.setenv("UV_CONFIG_FILE", str(settings))
    return folder


def write_requirements(project: Project, name: str, text: str) -> Path:
    project.layout.requirements.mkdir(exist_ok=True)
    path = project.layout.requirements / f"{name}.in"
    path.write_text(text)
    return path.with_suffix(".txt")


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_the_locks_of_the_project_name_projects_and_hashes_only(path: Path) -> None:
    assert problems(path.read_text()) == []


@pytest.mark.parametrize("release", releases.load(Layout.discover()).served, ids=lambda row: row.version)
def test_the_lock_of_a_served_release_has_the_pins_of_the_table(release: releases.Release) -> None:
    lock = (Layout.discover().requirements / f"{release.version}.txt").read_text()
    lines = (line.removesuffix(" \\") for line in lock.splitlines() if not line.startswith(" "))
    pins = {requirement.name: str(requirement.specifier) for requirement in map(Requirement, lines)}
    assert pins["ruff"] == f"=={release.ruff}"
    assert pins["pyright"] == f"=={release.pyright}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it locks nothing"),
        ("leaf==1.0\n", "has no hash"),
        (f"leaf==1.0 \\\nbranch==1.0 \\\n{HASH}\n", "line 1: no hash"),
        (f"leaf>=1.0 \\\n{HASH}\n", "leaf is not pinned"),
        (f"leaf==1.* \\\n{HASH}\n", "leaf is not pinned"),
        (f"leaf @ file:///opt/leaf.whl \\\n{HASH}\n", "leaf is not pinned"),
        (f"leaf @ https://packages.example.invalid/leaf.whl \\\n{HASH}\n", "leaf is not pinned"),
        (f"--index-url https://packages.example.invalid/\nleaf==1.0 \\\n{HASH}\n", "neither a project nor a hash"),
        (f"--find-links /opt/wheels\nleaf==1.0 \\\n{HASH}\n", "neither a project nor a hash"),
        (f"-e ./leaf \\\n{HASH}\n", "neither a project nor a hash"),
        ("leaf==1.0 \\\n    --hash=md5:00\n", "neither a project nor a hash"),
        (f"agent-framework-core==1.0 \\\n{HASH}\n", "put on the path per commit"),
    ],
)
def test_what_is_no_lock_is_told(text: str, said: str) -> None:
    assert any(said in problem for problem in problems(text)), problems(text)


def test_a_lock_has_everything_below_a_requirement_but_nothing_below_what_requires_core(
    project: Project, index: Path
) -> None:
    path = write_requirements(project, "1.0.0", "# why\nbranch\nleaf<2\nagent-framework-extra\n")

    project.good("lock", "--base", "1.0.0")

    text = path.read_text()
    pinned = [line.removesuffix(" \\") for line in text.splitlines() if not line.startswith(" ")]
    assert pinned == ["agent-framework-extra==3.0", "branch==1.0", "leaf==1.0"]
    for line in pinned:
        wheel = next(index.glob(f"*/{line.replace('-', '_').replace('==', '-')}-*.whl"))
        assert f"{line} \\\n    --hash=sha256:{sha256(wheel)}" in text
    assert problems(text) == []


def test_options_of_the_resolution_are_in_the_requirements(project: Project, index: Path) -> None:
    path = write_requirements(project, "1.0.0", "# lock: --resolution lowest-direct --python-version 3.10\nleaf>=1\n")

    project.good("lock")

    assert path.read_text().startswith("leaf==1.0 \\\n")


def test_a_lock_that_stays_as_it_is_says_so(project: Project, index: Path) -> None:
    write_requirements(project, "1.0.0", "leaf\n")
    project.good("lock")

    assert "requirements/1.0.0.txt: unchanged" in project.good("lock").err


def test_what_cannot_be_resolved_leaves_the_lock_alone(project: Project, index: Path) -> None:
    path = write_requirements(project, "1.0.0", "leaf\n")
    project.good("lock")
    before = path.read_bytes()
    write_requirements(project, "1.0.0", "leaf\nabsent\n")

    message = project.bad(1, "lock", "--base", "1.0.0")

    assert "requirements/1.0.0.in cannot be resolved" in message
    assert "absent" in message
    assert "next:" in message
    assert path.read_bytes() == before


def test_every_lock_is_tried_when_one_cannot_be_resolved(project: Project, index: Path) -> None:
    write_requirements(project, "1.0.0", "absent\n")
    other = write_requirements(project, "tools", "leaf\n")

    project.bad(1, "lock")

    assert other.read_text().startswith("leaf==2.0")


def test_an_unknown_lock_lists_the_known_ones(project: Project) -> None:
    write_requirements(project, "tools", "leaf\n")

    message = project.bad(2, "lock", "--base", "1.0.0")

    assert "there is no requirements/1.0.0.in" in message
    assert "there are: tools" in message
