"""`make siblings` on a small upstream: a package that builds on core, with a suite that the patches must not break."""

from __future__ import annotations

import pytest

from gated import COPYRIGHT, CORE, FIX, WORKSPACE, GatedProject
from patchset import releases, siblings
from patchset.envs import Env
from patchset.paths import Layout
from support import Project, make_archive, sha256
from test_gates import summary

SETTINGS = (
    b'[project]\nname = "agent-framework-extra"\nversion = "2.0.0"\n\n[tool.pytest.ini_options]\naddopts = "-q"\n'
)
SUITE = f"""{COPYRIGHT}
import pytest

from agent_framework import answer


def test_is_a_number() -> None:
    assert isinstance(answer(), int)


@pytest.mark.parametrize("limit", [LIMIT, 100])
def test_is_less(limit: int) -> None:
    assert answer() < limit


def test_fails_unpatched() -> None:
    assert answer() == -1
"""
KEPT = SUITE.replace("LIMIT", "43")
BROKEN = SUITE.replace("LIMIT", "42")
LOCK = "agent-framework-extra==2.0.0 \\\n"


def files(suite: str, top: str = "") -> dict[str, bytes]:
    return {
        f"{top}pyproject.toml": SETTINGS,
        f"{top}agent_framework/__init__.py": b"raise ImportError('the source is not what is tested')\n",
        f"{top}tests/extra/test_extra.py": suite.encode(),
    }


def write(project: Project, *, minimum: int = 3, more: str = "") -> None:
    (project.layout.patches / "siblings.toml").write_text(
        f'[[suite]]\nbase = "1.0.0"\npackage = "extra"\nminimum = {minimum}\n{more}'
    )


@pytest.fixture
def family(gated: GatedProject, monkeypatch: pytest.MonkeyPatch) -> GatedProject:
    """A base with one sibling in its workspace; the environment of the tools has all that it needs."""
    gated.release("1.0.0", line="1.0", core=CORE, workspace=WORKSPACE | files(KEPT, "packages/extra/"))
    gated.patches(FIX)
    gated.layout.requirements.mkdir()
    (gated.layout.requirements / "dependents-1.0.0.txt").write_text(LOCK)

    def tools(layout: Layout, name: str) -> Env:
        assert name == "dependents-1.0.0"
        return gated.env

    monkeypatch.setattr(siblings, "ensure_named", tools)
    monkeypatch.setattr(siblings, "workers", int)
    write(gated)
    return gated


def test_what_passes_unpatched_passes_patched(family: GatedProject) -> None:
    outcome = family.good("siblings")

    assert summary(outcome.out) == {
        "environment": ["ok", "", ""],
        "agent-framework-extra": ["ok", "3", "0"],
    }
    assert "3 pass unpatched; 0 skipped; 1 fail unpatched, too" in outcome.out
    assert outcome.out.splitlines()[-1] == "3 passed, 0 failed"
    assert list(family.layout.work.iterdir()) == []
    assert family.git("status", "--porcelain", "--ignored") == ""


def test_a_test_that_the_patches_break_is_named(family: GatedProject) -> None:
    family.release("1.0.0", line="1.0", core=CORE, workspace=WORKSPACE | files(BROKEN, "packages/extra/"))

    outcome = family.run("siblings")

    assert outcome.code == 1
    assert summary(outcome.out)["agent-framework-extra"] == ["FAILED", "2", "1"]
    assert "1 tests of agent-framework-extra pass unpatched and not patched" in outcome.out
    assert "| tests/extra/test_extra.py::test_is_less[42]: failed: assert 42 < 42" in outcome.out
    assert "where: build/logs/1.0.0-the-suite-of-agent-framework-extra-patched.log" in outcome.out
    assert "alone, patched" in outcome.err


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("os.kill(os.getpid(), 9)", "pytest did not come to its end, it left with status -9"),
        ("pytest.exit('enough', returncode=4)", "pytest left with status 4"),
    ],
)
def test_a_suite_that_does_not_come_to_its_end_names_its_log(family: GatedProject, end: str, said: str) -> None:
    suite = f"import os\n{KEPT}\n\ndef test_ends_it_all() -> None:\n    {end}\n"
    family.release("1.0.0", line="1.0", core=CORE, workspace=WORKSPACE | files(suite, "packages/extra/"))

    outcome = family.run("siblings")

    assert outcome.code == 1
    assert f"1.0.0: agent-framework-extra: tests: {said}" in outcome.out
    log = "build/logs/1.0.0-the-suite-of-agent-framework-extra-unpatched.log"
    assert f"where: {log}\n" in outcome.out
    assert f"next:  read {log}, then the same command again\n" in outcome.out
    assert (family.layout.root / log).is_file()


def test_a_suite_that_has_shrunk_is_told(family: GatedProject) -> None:
    write(family, minimum=4)

    out = family.run("siblings").out

    assert "the suite of agent-framework-extra is not what it should be" in out
    assert "only 3 tests pass on the unpatched base, 4 are the minimum" in out
    assert "where: patches/siblings.toml" in out


def test_a_suite_of_another_version_than_what_is_installed_is_not_run(family: GatedProject) -> None:
    (family.layout.requirements / "dependents-1.0.0.txt").write_text(LOCK.replace("2.0.0", "2.0.1"))

    outcome = family.run("siblings")

    assert outcome.code == 1
    assert "the tests of agent-framework-extra are of 2.0.0, installed is 2.0.1" in outcome.out
    assert "next:  pin it in requirements/dependents-1.0.0.in, then: make lock BASE=dependents-1.0.0" in outcome.out


def test_a_suite_can_come_from_the_packages_own_archive(family: GatedProject) -> None:
    family.release("1.0.0", line="1.0", core=CORE, workspace=WORKSPACE)
    archive = make_archive(family.layout.cache / "agent_framework_extra-2.0.0.tar.gz", files(KEPT))
    own = f'version = "2.0.0"\nsha256 = "{sha256(archive)}"\nsize = {archive.stat().st_size}\n'
    write(family, more=own)

    assert summary(family.good("siblings").out)["agent-framework-extra"] == ["ok", "3", "0"]

    archive.write_bytes(b"another")
    out = family.run("siblings").out
    assert "agent_framework_extra-2.0.0.tar.gz in the cache is not the published archive" in out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "siblings.toml has no suite for 1.0.0"),
        ('[[suite]]\nbase = "9.0.0"\npackage = "extra"\nminimum = 1\n', "siblings.toml has no suite for 1.0.0"),
        ('[[suite]]\nbase = "1.0.0"\npackage = "extra"\n', "suite 1 needs base, package, minimum, and"),
        ('[[suite]]\nbase = "1.0.0"\npackage = "extra"\nminimum = true\n', "suite 1 needs"),
        ('[[suite]]\nbase = "1.0.0"\npackage = "extra"\nminimum = 1\nsize = 1\n', "suite 1 needs"),
        ("[[suites]]\n", "siblings.toml may have [[suite]] rows and nothing else"),
    ],
)
def test_what_the_table_may_say(family: GatedProject, text: str, said: str) -> None:
    (family.layout.patches / "siblings.toml").write_text(text)

    outcome = family.run("siblings")

    assert outcome.code == 2
    assert said in outcome.out
    assert "where: patches/siblings.toml" in outcome.out


def test_the_siblings_of_the_project_are_of_served_bases_and_locked() -> None:
    layout = Layout.discover()
    for release in releases.load(layout).served:
        lock = (layout.requirements / f"dependents-{release.version}.txt").read_text()
        for sibling in siblings.load_siblings(layout, release.version):
            assert f"\n{sibling.project}==" in f"\n{lock}"
            assert sibling.minimum > 1
