"""The ten-todo task and the tool loop on the served releases themselves: what the patches turn round.

These tests run the real thing; the bases can be narrowed to those that a command is about.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from patchset import demo, releases
from patchset.demo import Cost, Options, Outcome
from patchset.paths import Layout
from patchset.prepared import Base, prepare
from patchset.releases import Release

LAYOUT = Layout.discover()
KNOWN = releases.load(LAYOUT)
ASKED = os.environ.get("PATCHSET_BASES", "").split()
BASES = [KNOWN.get(version) for version in ASKED] or list(KNOWN.served)
TODOS = 10
KEPT = 2
"""How many tool-call groups the scenarios' compaction keeps as they are."""


@pytest.fixture(scope="module")
def bases() -> dict[str, Base]:
    return {}


def cases() -> Iterator[object]:
    for release in BASES:
        for scenario in demo.scenarios_of(release):
            for stream in (False, True):
                for history_first in (True, False):
                    options = Options(TODOS, stream, history_first)
                    name = f"{release.version}-{scenario}-{'stream' if stream else 'whole'}"
                    name += "-history_first" if history_first else "-history_last"
                    yield pytest.param(release, scenario, options, id=name)


def outcomes(bases: dict[str, Base], release: Release, scenario: str, options: Options) -> tuple[Outcome, Outcome]:
    if release.version not in bases:
        bases[release.version] = prepare(LAYOUT, release)
    return demo.play(bases[release.version], scenario, options)


@pytest.mark.parametrize(("release", "scenario", "options"), list(cases()))
def test_the_patched_model_sees_every_result_of_its_own_task(
    bases: dict[str, Base], release: Release, scenario: str, options: Options
) -> None:
    stock, patched = outcomes(bases, release, scenario, options)

    assert patched.seen == patched.made
    assert patched.made[-1] == TODOS
    assert [call["flattened"] for call in patched.calls] == [0] * len(patched.calls)
    assert patched.boundaries == 1
    assert patched.flattened_after == TODOS - KEPT
    assert stock.made == patched.made
    if release.bug_7236 or scenario != "todos":
        assert stock.seen != patched.seen
        assert stock.seen[-1] < TODOS // 2
        assert stock.boundaries > 1
    else:
        assert stock == patched


@pytest.mark.parametrize("release", BASES, ids=lambda release: release.version)
def test_the_demo_shows_stock_and_patched_side_by_side(release: Release, capsys: pytest.CaptureFixture[str]) -> None:
    for scenario in demo.scenarios_of(release):
        stock = Outcome([{"number": 1, "does": "talk, todo 1", "made": 4, "verbatim": 2}], 3, 2)
        patched = Outcome([{"number": 1, "does": "talk, todo 1", "made": 4, "verbatim": 4}], 1, 2)

        demo.show(release, scenario, Options(), stock, patched)

        out = capsys.readouterr().out
        assert out.startswith(f"{release.version}, {scenario} (")
        assert "| 1    | talk, todo 1   | 4              | 2                   | 4                     |" in out
        assert "stock:   at its last call the model sees 2 of 4 results, the turn ends 3 times, and 2" in out
        assert "patched: at its last call the model sees 4 of 4 results, the turn ends once, and 2" in out
        assert "No difference" not in out

        demo.show(release, scenario, Options(), patched, patched)
        assert "No difference: the unpatched release has this one right." in capsys.readouterr().out

        demo.show(release, scenario, Options(), stock, stock)
        assert "No difference: the patches change nothing here." in capsys.readouterr().out


TOOL_LOOPS = [release for release in BASES if demo.has_tool_loop(LAYOUT, release)]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("release", TOOL_LOOPS, ids=lambda release: release.version)
def test_the_patched_tool_loop_pays_for_a_summary_once(bases: dict[str, Base], release: Release, stream: bool) -> None:
    if release.version not in bases:
        bases[release.version] = prepare(LAYOUT, release)

    stock, patched = demo.play_tool_loop(bases[release.version], stream=stream)

    assert len(patched.calls) == len(stock.calls) == demo.TOOL_LOOP_CALLS + 1
    assert max(patched.shown) <= 8
    grown = [after - before for before, after in zip(patched.read[6:], patched.read[7:], strict=False)]
    assert sum(grown[len(grown) // 2 :]) <= 1.2 * sum(grown[: len(grown) // 2])
    if not stream:
        assert max(stock.shown) > 4 * max(patched.shown)
        assert stock.read[-1] > 8 * patched.read[-1]


@pytest.mark.parametrize("release", TOOL_LOOPS, ids=lambda release: release.version)
def test_the_demo_shows_what_summaries_cost(release: Release, capsys: pytest.CaptureFixture[str]) -> None:
    stock = Cost([{"number": 1, "does": "search, todo 1", "messages": 35, "read": 753963}])
    patched = Cost([{"number": 1, "does": "search, todo 1", "messages": 6, "read": 53677}])

    demo.show_tool_loop(release, stock, patched)

    out = capsys.readouterr().out
    assert out.startswith(
        f"{release.version}, tool loop: 36 tool calls in one turn, not streaming, summarized on the way"
    )
    assert "stock:   the model is shown 35 messages at most, and the summarizer reads 753,963 characters in all" in out
    assert "patched: the model is shown 6 messages at most, and the summarizer reads 53,677 characters in all" in out
