"""`make demo`: the ten-todo task and a long tool loop, unpatched and patched, call by call, side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from patchset import console, contract
from patchset.envs import Env, check_python
from patchset.options import base_option, for_each, pass_layout
from patchset.paths import Layout
from patchset.prepared import Base, prepare
from patchset.proc import run
from patchset.releases import Release, load

STEP = "demo"
SCENARIOS = {
    "todos": "one loop does the todos one by one",
    "stacked-loops": "a loop around a loop that does two todos at a time",
    "auto-approval": "a harness agent without a loop, each tool call approved by a rule",
}

TOOL_LOOP_CALLS = 36

_DEMOS = Path(__file__).resolve().parents[1] / "demos"


@dataclass(frozen=True)
class Options:
    """How a scenario is run."""

    todos: int = 10
    stream: bool = False
    history_first: bool = True

    def __str__(self) -> str:
        mode = "streaming" if self.stream else "not streaming"
        order = "[history, compaction]" if self.history_first else "[compaction, history]"
        return f"{self.todos} todos, {mode}, providers {order}"


@dataclass(frozen=True)
class Outcome:
    """What came of a scenario on one build of core."""

    calls: list[dict[str, Any]]
    boundaries: int
    flattened_after: int

    @property
    def seen(self) -> list[int]:
        """How many of the task's own tool results the model is shown verbatim, call by call."""
        return [call["verbatim"] for call in self.calls]

    @property
    def made(self) -> list[int]:
        """How many there are, call by call."""
        return [call["made"] for call in self.calls]


def play(base: Base, scenario: str, options: Options) -> tuple[Outcome, Outcome]:
    """Play a scenario on the unpatched and on the patched core of a base."""
    return _play(base.env, base.stock, scenario, options), _play(base.env, base.patched, scenario, options)


def _play(env: Env, core: Path, scenario: str, options: Options) -> Outcome:
    return Outcome(**_run(env, core, scenario, "scenarios.py", scenario, json.dumps(asdict(options))))


@dataclass(frozen=True)
class Cost:
    """What a task in one tool loop cost on one build of core."""

    calls: list[dict[str, Any]]

    @property
    def shown(self) -> list[int]:
        """How many messages the model is shown, call by call."""
        return [call["messages"] for call in self.calls]

    @property
    def read(self) -> list[int]:
        """How many characters the summarizer has read so far, call by call."""
        return [call["read"] for call in self.calls]


def play_tool_loop(base: Base, *, stream: bool = False) -> tuple[Cost, Cost]:
    """Play the tool loop whose history is summarized on the way, on the unpatched and on the patched core of a base."""
    options = json.dumps({"calls": TOOL_LOOP_CALLS, "stream": stream})
    return (
        Cost(_run(base.env, base.stock, "tool loop", "tool_loop.py", options)),
        Cost(_run(base.env, base.patched, "tool loop", "tool_loop.py", options)),
    )


def _run(env: Env, core: Path, title: str, script: str, *arguments: str) -> Any:
    done = run(
        [env.python, _DEMOS / script, *arguments],
        step=STEP,
        what=f"the scenario {title} failed",
        cwd=core,
        env=env.environ(core, PYTHONDONTWRITEBYTECODE="1"),
    )
    return json.loads(done.stdout)


def has_tool_loop(layout: Layout, release: Release) -> bool:
    """Return whether the patched release promises that a summary is paid for once."""
    return "C13" in contract.promised(layout, release.version)


def scenarios_of(release: Release) -> Sequence[str]:
    """Return the scenarios that tell the patched release from the unpatched one, and before them the plain one."""
    return ["todos"] if release.bug_7236 else list(SCENARIOS)


def show(release: Release, scenario: str, options: Options, stock: Outcome, patched: Outcome) -> None:
    """Print the table of one scenario."""
    title = f"{release.version}, {scenario} ({SCENARIOS[scenario]}): {options}"
    columns = ["call", "the model does", "results so far", "stock sees verbatim", "patched sees verbatim"]
    rows = [
        [str(call["number"]), str(call["does"]), str(call["made"]), *map(str, seen)]
        for call, *seen in zip(patched.calls, stock.seen, patched.seen, strict=True)
    ]
    console.table(title, columns, rows)
    for name, outcome in (("stock", stock), ("patched", patched)):
        times = "once" if outcome.boundaries == 1 else f"{outcome.boundaries} times"
        console.say(
            f"{name + ':':<9}at its last call the model sees {outcome.seen[-1]} of {outcome.made[-1]} results, "
            f"the turn ends {times}, and {outcome.flattened_after} results are compacted after it"
        )
    if stock == patched:
        right = stock.seen == stock.made and stock.boundaries == 1
        why = "the unpatched release has this one right" if right else "the patches change nothing here"
        console.say(f"No difference: {why}.")
    console.say("")


def show_tool_loop(release: Release, stock: Cost, patched: Cost, *, stream: bool = False) -> None:
    """Print the table of the tool loop."""
    mode = "streaming" if stream else "not streaming"
    title = f"{release.version}, tool loop: {TOOL_LOOP_CALLS} tool calls in one turn, {mode}, summarized on the way"
    columns = ["call", "the model does", "stock: messages", "patched: messages"]
    columns += ["stock: characters summarized", "patched: characters summarized"]
    rows = [
        [str(call["number"]), str(call["does"]), *map(str, shown), *(f"{number:,}" for number in read)]
        for call, shown, read in zip(
            patched.calls,
            zip(stock.shown, patched.shown, strict=True),
            zip(stock.read, patched.read, strict=True),
            strict=True,
        )
    ]
    console.table(title, columns, rows)
    for name, cost in (("stock", stock), ("patched", patched)):
        console.say(
            f"{name + ':':<9}the model is shown {max(cost.shown)} messages at most, "
            f"and the summarizer reads {cost.read[-1]:,} characters in all"
        )
    console.say("")


@click.command("demo", short_help="The ten-todo task on stock and patched, side by side.")
@base_option
@click.option("--todos", default=10, show_default=True, type=click.IntRange(1, 500), help="How many todos.")
@click.option("--stream", is_flag=True, help="Stream the answers.")
@click.option("--history-last", is_flag=True, help="Put the history after the compaction (scenarios with a loop).")
@pass_layout
def command(layout: Layout, base: str, todos: int, stream: bool, history_last: bool) -> None:
    """Show, call by call, how many of its own tool results the model still sees verbatim, and what summaries cost."""
    bases = load(layout).resolve(base)
    check_python()
    options = Options(todos, stream, not history_last)

    def one(release: Release) -> None:
        ready = prepare(layout, release)
        for scenario in scenarios_of(release):
            with console.step(f"{release.version}: play {scenario}"):
                outcomes = play(ready, scenario, options)
            show(release, scenario, options, *outcomes)
        if has_tool_loop(layout, release):
            with console.step(f"{release.version}: play the tool loop"):
                costs = play_tool_loop(ready, stream=stream)
            show_tool_loop(release, *costs, stream=stream)

    for_each(bases, one)
