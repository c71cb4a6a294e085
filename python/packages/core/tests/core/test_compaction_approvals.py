# Copyright (c) Microsoft. All rights reserved.

"""Compaction around a turn that pauses for an approval, and calls that are never answered."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from agent_framework import (
    Agent,
    AgentResponse,
    AgentSession,
    CompactionProvider,
    Content,
    Message,
    SlidingWindowStrategy,
    SummarizationStrategy,
    ToolResultCompactionStrategy,
    tool,
)

from ._compaction_helpers import (
    ScriptedChatClient,
    Store,
    Summarizer,
    ask,
    assert_no_dangling_pointer,
    assert_paired,
    assert_unique_ids,
    both_persistences,
    call,
    every_axis,
    make_store,
    markers,
    say,
    summary_of,
    text_of,
    user,
)

NO_RESULT = "Error: Tool execution was aborted before a result was produced."


@tool(approval_mode="always_require")
def work(step: str) -> str:
    """Do one step of work."""
    return f"[[r{step[1:]}]] done"


class _Conversation:
    """An agent whose tool needs an approval, with one store."""

    def __init__(self, store: Store, streaming: bool, per_call: bool, **strategies: Any) -> None:
        self.store = store
        self.client = ScriptedChatClient()
        self.session = AgentSession()
        self._streaming = streaming
        compaction = CompactionProvider(
            before_strategy=strategies.get("before"),
            after_strategy=strategies.get("after"),
            history_source_id=store.source_id,
        )
        self._agent = Agent(
            client=self.client,
            tools=[work],
            context_providers=[store.provider, compaction],
            compaction_strategy=strategies.get("in_run"),
            require_per_service_call_history_persistence=per_call,
        )

    async def say(self, messages: Any, *replies: Any) -> AgentResponse[Any]:
        self.client.script(*replies)
        return await ask(self._agent, messages, session=self.session, streaming=self._streaming)

    async def answer(self, response: AgentResponse[Any], *replies: Any, approved: bool = True) -> AgentResponse[Any]:
        requests = [
            content
            for message in response.messages
            for content in message.contents
            if content.type == "function_approval_request"
        ]
        assert requests
        answers: list[Content] = [request.to_function_approval_response(approved=approved) for request in requests]
        return await self.say(Message("user", answers), *replies)

    def stored(self) -> list[Message]:
        return self.store.read(self.session)


@pytest.mark.contract("C13")
@every_axis
async def test_what_a_resumed_run_summarized_is_not_summarized_again(
    streaming: bool, store_kind: str, per_call: bool, tmp_path: Path
) -> None:
    """The result of an approved call is worked on in one message and stored in another."""
    summarizer = Summarizer()
    strategy = SummarizationStrategy(client=summarizer, target_count=1, threshold=0)  # type: ignore[arg-type]
    talk = _Conversation(make_store(store_kind, tmp_path), streaming, per_call, in_run=strategy)

    paused = await talk.say(user("u1"), call("1.0"))
    paused = await talk.answer(paused, call("1.1"))
    await talk.answer(paused, say("a1"))
    await talk.say(user("u2"), say("a2"))

    assert {"r1.0", "r1.1"} <= summarizer.times_read().keys()
    assert {marker: n for marker, n in summarizer.times_read().items() if n > 1} == {}
    assert_paired(talk.client.requests)
    assert_unique_ids(talk.stored())
    assert_no_dangling_pointer(talk.stored())


@pytest.mark.contract("C11")
@every_axis
@pytest.mark.parametrize("place", ["in_run", "after"])
@pytest.mark.parametrize("approved", [True, False], ids=["approved", "rejected"])
async def test_a_healthy_run_after_an_approval_logs_nothing(
    streaming: bool,
    store_kind: str,
    per_call: bool,
    place: str,
    approved: bool,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    strategy = ToolResultCompactionStrategy(keep_last_tool_call_groups=0)
    talk = _Conversation(make_store(store_kind, tmp_path), streaming, per_call, **{place: strategy})

    with caplog.at_level(logging.WARNING):
        paused = await talk.say(user("u1"), call("1.0"))
        await talk.answer(paused, say("a1"), approved=approved)
        await talk.say(user("u2"), say("a2"))
        await talk.say(user("u3"), say("a3"))

    assert [record.getMessage() for record in caplog.records] == []
    assert any(summary_of(message) for message in talk.stored())
    assert not any(c.type == "function_call" for message in talk.client.requests[-1] for c in message.contents)


@pytest.mark.contract("C3")
@every_axis
@pytest.mark.parametrize("place", ["in_run", "before"])
async def test_the_input_of_a_turn_that_paused_stays(
    streaming: bool, store_kind: str, per_call: bool, place: str, tmp_path: Path
) -> None:
    """A pause does not end the turn, and all that the caller gave to the turn is being asked."""
    strategy = SlidingWindowStrategy(keep_last_groups=1)
    talk = _Conversation(make_store(store_kind, tmp_path), streaming, per_call, **{place: strategy})
    await talk.say(user("u0"), say("a0"))

    paused = await talk.say([user("u1"), user("u1-too")], call("1.0"))
    paused = await talk.answer(paused, call("1.1"))
    await talk.answer(paused, say("a1"))

    for request in talk.client.requests[1:]:
        assert {"u1", "u1-too"} <= set(markers(request))
    assert_paired(talk.client.requests)


@pytest.mark.contract("C2")
@every_axis
async def test_a_call_that_the_user_passed_over_is_sent_with_a_result_that_says_so(
    streaming: bool, store_kind: str, per_call: bool, tmp_path: Path
) -> None:
    talk = _Conversation(make_store(store_kind, tmp_path), streaming, per_call)

    await talk.say(user("u1"), call("1.0"))
    await talk.say(user("u2"), say("a2"))
    await talk.say(user("u3"), say("a3"))

    assert_paired(talk.client.requests)
    if per_call:
        assert markers(talk.client.requests[-1]) == ["u1", "c1.0", "u2", "a2", "u3"]
        assert [text_of(m) for m in talk.client.requests[-1] if m.role == "tool"] == [NO_RESULT]
    assert "c1.0" in markers(talk.stored())
    assert not any(message.role == "tool" for message in talk.stored())


@pytest.mark.contract("C2")
@every_axis
async def test_a_call_that_is_approved_late_is_sent_with_its_result(
    streaming: bool, store_kind: str, per_call: bool, tmp_path: Path
) -> None:
    talk = _Conversation(make_store(store_kind, tmp_path), streaming, per_call)

    paused = await talk.say(user("u1"), call("1.0"))
    await talk.say(user("u2"), say("a2"))
    await talk.answer(paused, say("a1"))

    assert_paired(talk.client.requests)
    assert {"c1.0", "r1.0"} <= set(markers(talk.client.requests[-1]))


@pytest.mark.contract("C2")
@both_persistences
@pytest.mark.parametrize("streaming", [False, True], ids=["non_streaming", "streaming"])
@pytest.mark.parametrize("calls", [1, 2])
async def test_a_call_whose_execution_failed_is_sent_with_a_result_that_says_so(
    streaming: bool, per_call: bool, calls: int, tmp_path: Path
) -> None:
    """Per-service-call persistence stores a call before it is executed."""

    @tool(name="work", approval_mode="never_require")
    def fail(step: str) -> str:
        """Fail in a way that ends the run."""
        raise asyncio.CancelledError

    client = ScriptedChatClient([call(*(f"1.{part}" for part in range(calls))), say("a2")])
    store = make_store("memory", tmp_path)
    agent = Agent(
        client=client,
        tools=[fail],
        context_providers=[store.provider],
        require_per_service_call_history_persistence=per_call,
    )
    session = AgentSession()

    with pytest.raises(asyncio.CancelledError):
        await ask(agent, user("u1"), session=session, streaming=streaming)
    await ask(agent, user("u2"), session=session, streaming=streaming)

    assert_paired(client.requests)
    assert "u2" in markers(client.requests[-1])
