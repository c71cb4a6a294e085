"""The ten-todo task without a model or a network: a scripted client, and what it was shown at each of its calls.

Runs on any `agent-framework-core` that can be imported and knows nothing of the tooling.
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterable, Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

warnings.filterwarnings("ignore")

from agent_framework import (  # noqa: E402
    Agent,
    AgentSession,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    CompactionProvider,
    Content,
    ContextProvider,
    FunctionInvocationLayer,
    InMemoryHistoryProvider,
    Message,
    ResponseStream,
    ToolResultCompactionStrategy,
)

KEEP = 2
"""How many tool-call groups the compaction keeps as they are."""


@dataclass
class Call:
    """One call of the model."""

    number: int
    does: str
    made: int
    """How many tool results the task has produced so far."""
    verbatim: int
    """How many of them the model is shown word for word."""
    flattened: int
    """How many tool-call groups it is shown as a summary text instead."""
    messages: int
    """How many messages it is shown in all."""


class ScriptedClient(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """A model that does one todo after the other: it asks for the tool `search`, and says that the todo is done.

    With `talks=False` it asks for the tool for one todo after the other and talks only at the end.
    """

    def __init__(self, todos: int, *, talks: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.steps = [step for todo in range(1, todos + 1) for step in ((todo, "search"), (todo, "talk"))]
        if not talks:
            self.steps = [step for step in self.steps if step[1] == "search"]
        self.calls: list[Call] = []

    def answer(self, messages: Sequence[Message]) -> list[Content]:
        """Look at what is shown, and go on."""
        done = self.steps[: len(self.calls)]
        made = {f"todo-{todo}": finding(todo) for todo, what in done if what == "search"}
        shown = {
            content.call_id
            for message in messages
            for content in message.contents
            if content.type == "function_result" and made.get(content.call_id or "") == str(content.result)
        }
        todo, what = self.steps[len(done)] if len(done) < len(self.steps) else (0, "all is done")
        does = f"{what}, todo {todo}" if todo else what
        self.calls.append(Call(len(done) + 1, does, len(made), len(shown), flattened(messages), len(messages)))
        if what == "search":
            return [Content.from_function_call(f"todo-{todo}", "search", arguments={"todo": todo})]
        return [Content.from_text(f"todo {todo} is done" if todo else what)]

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Awaitable[ChatResponse] | ResponseStream[ChatResponseUpdate, ChatResponse]:
        if stream:

            async def updates() -> AsyncIterable[ChatResponseUpdate]:
                contents = self.answer(messages)
                yield ChatResponseUpdate(contents=contents, role="assistant", message_id=f"answer-{len(self.calls)}")

            return ResponseStream(updates(), finalizer=ChatResponse.from_updates)

        async def response() -> ChatResponse:
            contents = self.answer(messages)
            return ChatResponse(
                messages=[Message(role="assistant", contents=contents, message_id=f"answer-{len(self.calls)}")]
            )

        return response()


class Summarizer(BaseChatClient):
    """A model that summarizes, and counts the characters that it is given to read."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0
        self.asked = 0

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Awaitable[ChatResponse]:
        async def response() -> ChatResponse:
            self.asked += 1
            self.read += sum(len(message.text) for message in messages)
            return ChatResponse(messages=[Message(role="assistant", contents=[f"what was found ({self.asked})"])])

        return response()


class Boundaries(ContextProvider):
    """Counts how often a turn-scoped provider is told that a turn is over."""

    after_run_once_per_turn = True

    def __init__(self) -> None:
        super().__init__("boundaries")
        self.count = 0

    async def after_run(self, **kwargs: Any) -> None:
        self.count += 1


def finding(todo: int) -> str:
    """Return what the tool finds for a todo."""
    return f"finding for todo {todo}"


def flattened(messages: Sequence[Message]) -> int:
    """Return how many tool-call groups a compaction has replaced by the text that it writes for them."""
    return sum(message.role == "assistant" and message.text.startswith("[Tool results:") for message in messages)


def memory() -> InMemoryHistoryProvider:
    """Return a history that hides what a compaction has excluded."""
    return InMemoryHistoryProvider(skip_excluded=True)


def strategy() -> ToolResultCompactionStrategy:
    """Return the strategy by which a history is compacted after a turn."""
    return ToolResultCompactionStrategy(keep_last_tool_call_groups=KEEP)


def compaction(history: InMemoryHistoryProvider) -> CompactionProvider:
    """Return the compaction of a history after a turn."""
    return CompactionProvider(after_strategy=strategy(), history_source_id=history.source_id)


def stored(session: AgentSession, history: InMemoryHistoryProvider) -> list[Message]:
    """Return what a session's history holds."""
    return list((session.state.get(history.source_id) or {}).get("messages") or [])


async def run(agent: Agent[Any], session: AgentSession, task: str, *, stream: bool) -> None:
    """Let an agent do a task to its end."""
    if stream:
        answer = agent.run(task, session=session, stream=True)
        async for _ in answer:
            pass
        await answer.get_final_response()
    else:
        await agent.run(task, session=session)
