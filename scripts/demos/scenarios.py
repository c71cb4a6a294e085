"""What the demo runs: `scenarios.py <scenario> <options>`, once per build of core; options and outcome are JSON.

todos: one loop does the todos one by one. stacked-loops: a loop around a loop that does two todos at a time.
auto-approval: a harness agent without a loop, whose tool needs an approval that a rule gives each time.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict, dataclass
from typing import Any

from agent_framework import (
    Agent,
    AgentLoopMiddleware,
    ContextProvider,
    InMemoryHistoryProvider,
    create_harness_agent,
    tool,
)
from scripted import Boundaries, ScriptedClient, compaction, finding, flattened, memory, run, stored, strategy


@tool(approval_mode="never_require")
def search(todo: int) -> str:
    """Look something up for a todo."""
    return finding(todo)


@tool(approval_mode="always_require", name="search")
def guarded_search(todo: int) -> str:
    """Look something up for a todo, with an approval."""
    return finding(todo)


@dataclass
class Options:
    """How a scenario is run."""

    todos: int
    stream: bool = False
    history_first: bool = True


def until(iterations: int) -> AgentLoopMiddleware:
    """Return a loop of so many iterations."""

    def should_continue(*, iteration: int, **kwargs: Any) -> bool:
        return iteration < iterations

    return AgentLoopMiddleware(should_continue, max_iterations=None)


def looped(client: ScriptedClient, history: InMemoryHistoryProvider, last: ContextProvider, options: Options) -> Agent:
    """Return an agent with one loop."""
    both = [history, compaction(history)]
    return Agent(
        client=client,
        tools=[search],
        context_providers=[*(both if options.history_first else reversed(both)), last],
        middleware=[until(options.todos)],
    )


def doubly_looped(
    client: ScriptedClient, history: InMemoryHistoryProvider, last: ContextProvider, options: Options
) -> Agent:
    """Return an agent with a loop around a loop that does two todos."""
    agent = looped(client, history, last, options)
    agent.middleware = [until((options.todos + 1) // 2), until(2)]
    return agent


def harness(client: ScriptedClient, history: InMemoryHistoryProvider, last: ContextProvider, options: Options) -> Agent:
    """Return a harness agent without a loop that approves its tool calls itself."""
    return create_harness_agent(
        client,
        tools=[guarded_search],
        history_provider=history,
        after_compaction_strategy=strategy(),
        context_providers=[last],
        auto_approval_rules=[lambda function_call: True],
        disable_file_memory=True,
        disable_todo=True,
        disable_mode=True,
        disable_web_search=True,
    )


SCENARIOS = {"todos": (looped, True), "stacked-loops": (doubly_looped, True), "auto-approval": (harness, False)}


async def play(scenario: str, options: Options) -> dict[str, Any]:
    """Run a scenario and return what the model saw, call by call, and what was left at the end."""
    make, talks = SCENARIOS[scenario]
    client, history, boundaries = ScriptedClient(options.todos, talks=talks), memory(), Boundaries()
    agent = make(client, history, boundaries, options)
    session = agent.create_session()
    await run(agent, session, f"Do {options.todos} todos.", stream=options.stream)
    return {
        "calls": [asdict(call) for call in client.calls],
        "boundaries": boundaries.count,
        "flattened_after": flattened(stored(session, history)),
    }


def main() -> None:
    """Play what the command line says."""
    _, scenario, options = sys.argv
    print(json.dumps(asyncio.run(play(scenario, Options(**json.loads(options))))))  # noqa: T201


if __name__ == "__main__":
    main()
