"""The workflows for those who fork this: commands that exist, served releases, and few rights."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from patchset.paths import Layout
from patchset.releases import load

LAYOUT = Layout.discover()
WORKFLOWS = sorted((LAYOUT.root / ".github/workflows").glob("*.yml"))

every_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


@every_workflow
def test_actions_are_pinned_by_digest_and_say_which_release_that_is(path: Path) -> None:
    used = re.findall(r"uses: (.*)", path.read_text())

    assert used
    assert [line for line in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


def test_an_action_is_pinned_to_the_same_release_everywhere() -> None:
    used = {line for path in WORKFLOWS for line in re.findall(r"uses: (.*)", path.read_text())}
    names = [line.partition("@")[0] for line in used]

    assert len(names) == len(set(names))


@every_workflow
def test_commands_of_make_exist(path: Path) -> None:
    text = path.read_text()
    targets = set(re.findall(r"run: make ([a-z]+)", text))
    targets |= {name.strip() for listed in re.findall(r"command: \[(.*)\]", text) for name in listed.split(",")}

    assert targets
    assert targets <= set(re.findall(r"^([a-z]+):", (LAYOUT.root / "Makefile").read_text(), re.MULTILINE))


def test_every_served_release_is_tested() -> None:
    matrices = re.findall(r"base: \[(.*)\]", (LAYOUT.root / ".github/workflows/ci.yml").read_text())

    assert len(matrices) > 1
    for listed in matrices:
        assert re.findall(r'"([^"]+)"', listed) == [row.version for row in load(LAYOUT).served]


@every_workflow
def test_only_a_job_without_code_of_the_project_may_write(path: Path) -> None:
    text = path.read_text()
    settings, _, below = text.partition("\njobs:")
    _, *jobs = re.split(r"\n  (?=[a-z]+:\n    )", below)

    assert "\npermissions:\n  contents: read\n" in settings
    assert jobs
    for job in jobs:
        if "write" in re.sub(r"#.*", "", job):
            assert "checkout" not in job
            assert "make " not in re.sub(r"#.*", "", job)
        else:
            assert "persist-credentials: false" in job
        assert "timeout-minutes:" in job


@every_workflow
def test_nothing_from_outside_is_put_into_a_script(path: Path) -> None:
    scripts = re.findall(r"run: (.*)", path.read_text())

    assert [line for line in scripts if re.search(r"\$\{\{ (?!matrix\.)", line)] == []
