"""The image mover of `docs/compaction.md` does what the document says, on the served releases that promise it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from patchset import contract, releases
from patchset.paths import Layout
from patchset.prepared import Base, prepare
from patchset.proc import run

LAYOUT = Layout.discover()
KNOWN = releases.load(LAYOUT)
ASKED = os.environ.get("PATCHSET_BASES", "").split()
BASES = [
    release
    for release in ([KNOWN.get(version) for version in ASKED] or KNOWN.served)
    if "C9" in contract.promised(LAYOUT, release.version)
]
CALLS = 11


@pytest.fixture(scope="module", params=BASES, ids=lambda release: release.version)
def base(request: pytest.FixtureRequest) -> Base:
    return prepare(LAYOUT, request.param)


def play(base: Base, folder: Path, example: str, strategy: str, mode: str) -> dict[str, Any]:
    (folder / "image_mover.py").write_text(example, encoding="utf-8")
    done = run(
        [base.env.python, Path(__file__).parent / "integration/image_mover_run.py", strategy, mode],
        step="example",
        what="the image mover failed",
        cwd=folder,
        env=base.env.environ(folder, base.patched, PYTHONDONTWRITEBYTECODE="1"),
    )
    return json.loads(done.stdout)


def the_example() -> str:
    text = (LAYOUT.root / "docs/compaction.md").read_text(encoding="utf-8")
    [example] = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return example


@pytest.mark.parametrize("mode", ["whole", "stream"])
@pytest.mark.parametrize(("strategy", "images"), [("summarization", 2), ("tool_results", 1)])
def test_summaries_behind_the_image_mover_last(
    base: Base, tmp_path: Path, strategy: str, images: int, mode: str
) -> None:
    outcome = play(base, tmp_path, the_example(), strategy, mode)

    assert len(outcome["messages"]) == CALLS + 2
    assert outcome["images_in_tool_messages"] == 0
    assert max(outcome["images_in_user_messages"]) == images
    assert outcome["stored_images"] == CALLS
    assert outcome["stored_moved"] == 0
    assert outcome["stored_summaries"] > 0
    assert outcome["messages"][-1] < 2 * CALLS
    assert outcome["logged"] == []


def test_without_its_claims_no_summary_lasts(base: Base, tmp_path: Path) -> None:
    unclaimed = re.sub(r"record_superseded\((Message\(.*\)), message\)", r"\1", the_example())
    assert unclaimed.count("record_superseded") == 1

    outcome = play(base, tmp_path, unclaimed, "summarization", "whole")

    assert outcome["stored_images"] == CALLS
    assert outcome["stored_summaries"] == 0
    assert [line for line in outcome["logged"] if "record_superseded" in line]
