"""A wheel is the same wherever it is built, is what upstream published but for the patches, and has been tried."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from email.message import Message
from pathlib import Path

import pytest

from gated import ANSWER, BEHAVIOUR, CORE, FIX, TEST, GatedProject, answer
from patchset import releases, smoke
from patchset.apply import apply
from patchset.core import build_wheel, export
from patchset.errors import PatchsetError
from patchset.paths import CORE as CORE_PATH
from patchset.paths import Layout
from patchset.wheel import build_twice, check_wheel, published_metadata
from support import sha256

NAME = "agent_framework_core-1.0.0+turnscope.1-py3-none-any.whl"
INFO = "agent_framework_core-1.0.0+turnscope.1.dist-info"
TRY = """
import importlib.metadata, pathlib, sys
import agent_framework
assert importlib.metadata.version("agent-framework-core") == sys.argv[1], sys.argv
assert pathlib.Path(agent_framework.__file__).is_relative_to(sys.prefix)
if agent_framework.answer() != 42:
    sys.exit("wrong answer")
"""
PYTEST = {
    *("exceptiongroup", "execnet", "iniconfig", "packaging", "pluggy", "pygments"),
    *("pytest", "pytest-reportlog", "pytest-xdist", "tomli", "typing-extensions"),
}
"""What a run of the behaviour tests needs, at the versions of the tools."""


@pytest.fixture
def trial(gated: GatedProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GatedProject:
    """The project, with a lock and a trial of its own."""
    script = tmp_path / "try.py"
    script.write_text(TRY)
    monkeypatch.setattr(smoke, "SCRIPT", script)
    only_this(monkeypatch, Path(sys.executable))
    gated.layout.requirements.mkdir()
    (gated.layout.requirements / "1.0.0.txt").write_text("")
    gated.patches(FIX)
    return gated


def only_this(monkeypatch: pytest.MonkeyPatch, *pythons: Path) -> None:
    """Let there be no other Pythons."""

    def candidates(environ: object) -> list[Path]:
        return list(pythons)

    monkeypatch.setattr(smoke, "candidates", candidates)


def rewritten(wheel: Path, file: str, old: bytes | None, new: bytes | None) -> Path:
    """Return a copy of a wheel in which a file is changed (all of it for no `old`) or left out (for no `new`)."""
    copy = wheel.parent / "changed" / wheel.name
    copy.parent.mkdir()
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(copy, "w") as target:
        files = {name: source.read(name) for name in source.namelist()}
        if new is None:
            del files[file]
        else:
            files[file] = new if old is None else files[file].replace(old, new)
        for name, content in files.items():
            target.writestr(name, content)
    return copy


def test_a_wheel_is_built_tried_and_put_into_dist(trial: GatedProject, monkeypatch: pytest.MonkeyPatch) -> None:
    dist = trial.layout.dist
    dist.mkdir()
    (dist / "agent_framework_core-1.0.0+turnscope.0-py3-none-any.whl").write_bytes(b"an earlier one")
    (dist / "agent_framework_core-9.0.0+turnscope.1-py3-none-any.whl").write_bytes(b"of another release")

    outcome = trial.good("wheel")

    assert f"dist/{NAME}, exercised on Python 3." in outcome.out
    assert sha256(dist / NAME) in outcome.out
    wheels = sorted(path.name for path in dist.glob("*.whl"))
    assert wheels == [NAME, "agent_framework_core-9.0.0+turnscope.1-py3-none-any.whl"]
    checked = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=dist, capture_output=True, check=True
    )
    assert checked.stdout.decode().splitlines() == [f"{name}: OK" for name in wheels]
    with zipfile.ZipFile(dist / NAME) as wheel:
        assert wheel.read(ANSWER) == answer(42)
        assert wheel.read(f"{INFO}/licenses/LICENSE") == b"MIT\n"
        assert b"\nVersion: 1.0.0+turnscope.1\n" in wheel.read(f"{INFO}/METADATA")
    # The version is set in a copy, never in the checkout.
    assert trial.git("status", "--porcelain", "--ignored") == ""
    assert list(trial.layout.work.iterdir()) == []

    before = (dist / NAME).read_bytes()
    (dist / NAME).unlink()
    trial.good("wheel")
    assert (dist / NAME).read_bytes() == before


def test_a_wheel_that_does_not_do_what_it_should_stays_out_of_dist(trial: GatedProject) -> None:
    trial.patches(replace(FIX, edits={ANSWER: answer(43)}))

    message = trial.bad(1, "wheel")

    assert f"smoke: {NAME} does not do what it should on Python 3." in message
    assert "| wrong answer" in message
    assert "next:" in message
    assert not trial.layout.dist.exists()


def test_a_build_that_depends_on_its_surroundings_is_told(gated: GatedProject, tmp_path: Path) -> None:
    backend = (
        b"import os\nfrom flit_core import buildapi\nfrom flit_core.buildapi import *\n\n\n"
        b"def build_wheel(*arguments):\n"
        b"    with open('agent_framework/_built.py', 'w') as built:\n"
        b"        built.write(f'TZ = {os.environ[\"TZ\"]!r}\\n')\n"
        b"    return buildapi.build_wheel(*arguments)\n"
    )
    pyproject = CORE["pyproject.toml"].replace(b'"flit_core.buildapi"', b'"backend"\nbackend-path = ["."]')
    gated.patches(replace(FIX, edits={"backend.py": backend, "pyproject.toml": pyproject}))
    applied = apply(gated.layout, releases.load(gated.layout).default)

    with pytest.raises(PatchsetError) as raised:
        build_twice(gated.env, gated.checkout, applied.commit, "1.0.0", "1.0.0+turnscope.1", tmp_path / "work")

    assert raised.value.what == f"{NAME} is not the same when built twice"
    assert raised.value.state == f"they differ in agent_framework/_built.py, {INFO}/RECORD"


def test_a_source_that_does_not_state_its_version_once_is_told(gated: GatedProject) -> None:
    gated.patches(replace(FIX, edits={"pyproject.toml": CORE["pyproject.toml"] + b'\n[tool.x]\nversion = "1.0.0"\n'}))

    assert 'pyproject.toml does not say version = "1.0.0", once' in gated.bad(1, "wheel")


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (f"{INFO}/METADATA", b"1.0.0+turnscope.1", b"1.0.0", "Version is 1.0.0, not 1.0.0+turnscope.1"),
        (f"{INFO}/METADATA", b"\nLicense-File: LICENSE", b"", "License-File is [], upstream published ['LICENSE']"),
        (
            f"{INFO}/METADATA",
            b"\nSummary",
            b"\nRequires-Dist: more>=1\nSummary",
            "Requires-Dist is ['more>=1'], upstream",
        ),
        (f"{INFO}/METADATA", b">=3.10", b">=3.9", "Requires-Python is ['>=3.9'], upstream published ['>=3.10']"),
        (f"{INFO}/METADATA", b"\nSummary", b"\nProvides-Extra: x\nSummary", "Provides-Extra is ['x'], upstream"),
        (f"{INFO}/licenses/LICENSE", None, None, f"{INFO}/licenses/LICENSE is missing"),
        (f"{INFO}/licenses/LICENSE", None, b"Mine\n", f"{INFO}/licenses/LICENSE is not what the source has"),
        (ANSWER, None, None, f"{ANSWER} is missing"),
        (ANSWER, None, answer(1), f"{ANSWER} is not what the source has"),
        (ANSWER, None, answer(1), "RECORD: "),
        ("agent_framework/_more.py", None, b"x = 1\n", "agent_framework/_more.py is not in the source"),
    ],
)
def test_a_wheel_that_is_not_what_it_should_be_is_told(
    gated: GatedProject, tmp_path: Path, file: str, old: bytes | None, new: bytes | None, said: str
) -> None:
    wheel, published, source = built(gated, tmp_path)
    assert check_wheel(wheel, published, "1.0.0+turnscope.1", source) == []

    problems = check_wheel(rewritten(wheel, file, old, new), published, "1.0.0+turnscope.1", source)

    assert any(problem.startswith(said) for problem in problems), problems


def built(gated: GatedProject, folder: Path) -> tuple[Path, Message, Path]:
    """Return a good wheel, what was published, and the source."""
    release = releases.load(gated.layout).default
    applied = apply(gated.layout, release)
    source = folder / "source" / CORE_PATH
    export(gated.checkout, applied.commit, folder / "source", CORE_PATH)
    pyproject = source / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace('"1.0.0"', '"1.0.0+turnscope.1"'))
    return build_wheel(gated.env, source, folder / "wheel"), published_metadata(gated.layout, release), source


# region Pythons


def fake_python(path: Path, answer: str, status: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{answer}'\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_one_python_of_each_minor_version_is_found(tmp_path: Path) -> None:
    versions = tmp_path / "pyenv/versions"
    on_path = fake_python(tmp_path / "bin/python3.12", "12 cpython /usr")
    fake_python(tmp_path / "bin/python3.13", "pyenv: python3.13: command not found", status=127)
    fake_python(versions / "3.12.1/bin/python3", "12 cpython /pyenv")
    of_pyenv = fake_python(versions / "3.13.0/bin/python3", "13 cpython /pyenv")
    fake_python(versions / "3.9.18/bin/python3", "9 cpython /pyenv")
    fake_python(versions / "3.10-pypy/bin/python3", "10 pypy /pyenv")
    environ = {"PATH": f"{tmp_path / 'bin'}", "PYENV_ROOT": str(tmp_path / "pyenv")}

    found = smoke.find_pythons(list(smoke.candidates(environ))[1:])

    assert found == {12: on_path, 13: of_pyenv}


def test_this_python_is_one_of_those_that_are_found() -> None:
    assert set(smoke.find_pythons(smoke.candidates(os.environ))) & set(smoke.MINORS)


def test_a_wheel_is_tried_on_every_python_even_when_it_fails_on_one(
    trial: GatedProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = fake_python(tmp_path / "broken/python", "10 cpython /nowhere")
    only_this(monkeypatch, broken, Path(sys.executable))

    message = trial.bad(1, "wheel")

    assert f"no environment could be made with {broken}" in message
    assert f"try the wheel on Python 3.{sys.version_info[1]}: done" in message
    assert not trial.layout.dist.exists()


def test_without_a_fitting_python_nothing_is_claimed(trial: GatedProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoke, "MINORS", (2,))

    assert "there is no Python from 3.2 to 3.2 to try the wheel on" in trial.bad(1, "wheel")
    assert not trial.layout.dist.exists()


def test_the_behaviour_tests_run_on_the_installed_wheel(trial: GatedProject) -> None:
    tools = (Layout.discover().requirements / "tools.txt").read_text()
    blocks = re.split(r"\n(?=\S)", tools.rstrip())
    pytest_only = [block for block in blocks if block.partition("==")[0] in PYTEST]
    (trial.layout.requirements / "1.0.0.txt").write_text("\n".join(pytest_only) + "\n")
    behaviour = f'{BEHAVIOUR}\n\n@pytest.mark.contract("T1")\ndef test_runs_the_wheel() -> None:\n'
    behaviour += "    import agent_framework, sys\n    assert agent_framework.__file__.startswith(sys.prefix)\n"
    trial.behaviour({TEST: behaviour})

    outcome = trial.good("pythons")

    python = f"Python 3.{sys.version_info[1]}"
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in outcome.out.splitlines() if line.startswith("|")
    ]
    assert [row[:5] for row in rows[2:]] == [["1.0.0", "wheel", "ok", "", ""], ["1.0.0", python, "ok", "4", "0"]]
    assert outcome.out.splitlines()[-1] == "4 passed, 0 failed"
    assert list(trial.layout.work.iterdir()) == []

    trial.behaviour({TEST: BEHAVIOUR.replace("== 42", "== 43")})
    outcome = trial.run("pythons")

    assert outcome.code == 1
    assert f"1.0.0: {python}: behaviour tests: 1 behaviour tests fail on the wheel" in outcome.out
    assert f"{TEST}::test_is_the_answer: assert 42 == 43" in outcome.out
    assert outcome.out.splitlines()[-1] == "2 passed, 1 failed"
