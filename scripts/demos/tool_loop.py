"""A long task in one tool loop, its history summarized on the way: `tool_loop.py <options>`, once per build of core.

Options and outcome are JSON. The outcome is, for each call of the model, how many messages it is shown and how much the
summarizer has been given to read until then.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from typing import Any

from agent_framework import Agent, SummarizationStrategy, tool
from scripted import ScriptedClient, Summarizer, memory, run

PAGE = 1400
"""How many characters a tool result has, about."""


@dataclass
class Options:
    """How the task is run."""

    calls: int
    stream: bool = False


class ReadingClient(ScriptedClient):
    """Notes at each call what has been summarized so far."""

    def __init__(self, calls: int, summarizer: Summarizer) -> None:
        super().__init__(calls, talks=False)
        self.summarizer = summarizer
        self.read: list[int] = []

    def answer(self, messages: Any) -> Any:
        """Note what the summarizer has read, and go on."""
        self.read.append(self.summarizer.read)
        return super().answer(messages)


@tool(approval_mode="never_require")
def search(todo: int) -> str:
    """Return a page about a todo."""
    return f"page about todo {todo}. ".ljust(PAGE, ".")


async def play(options: Options) -> list[dict[str, Any]]:
    """Do the task, and return what each call of the model was shown and had cost."""
    summarizer = Summarizer()
    client = ReadingClient(options.calls, summarizer)
    client.function_invocation_configuration["max_iterations"] = options.calls + 1
    agent = Agent(
        client=client,
        tools=[search],
        context_providers=[memory()],
        compaction_strategy=SummarizationStrategy(client=summarizer, target_count=4, threshold=2),
    )
    await run(agent, agent.create_session(), f"Do {options.calls} todos.", stream=options.stream)
    return [
        {"number": call.number, "does": call.does, "messages": call.messages, "read": read}
        for call, read in zip(client.calls, client.read, strict=True)
    ]


def main() -> None:
    """Play what the command line says."""
    print(json.dumps(asyncio.run(play(Options(**json.loads(sys.argv[1]))))))  # noqa: T201


if __name__ == "__main__":
    main()
