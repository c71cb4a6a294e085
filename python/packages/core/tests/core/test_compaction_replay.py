# Copyright (c) Microsoft. All rights reserved.

"""A turn that repeats another is stored each time; a transcript that the caller sends again is stored once."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from agent_framework import Agent, AgentSession, InMemoryHistoryProvider, Message

from ._compaction_helpers import (
    STRATEGY_NAMES,
    ScriptedChatClient,
    Store,
    Talk,
    ask,
    assert_stored_as_said,
    assert_unique_ids,
    both_modes,
    both_persistences,
    call,
    every_axis,
    make_store,
    make_strategy,
    markers,
    say,
    text_of,
    user,
    without_summaries,
)


@pytest.mark.contract("C5")
@every_axis
@pytest.mark.parametrize("given", ["text", "message", "same_object"])
async def test_identical_turns_are_stored_each_time(
    streaming: bool, store_kind: str, per_call: bool, given: str, tmp_path: Path
) -> None:
    """Four turns of "next" and "ok" stored two messages."""
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call)
    one_object = Message("user", ["next"])

    for _ in range(4):
        talk.client.script(Message("assistant", ["ok"]))
        question = {"text": "next", "message": Message("user", ["next"]), "same_object": one_object}[given]
        await ask(talk.agent, question, session=talk.session, streaming=streaming)

    assert [text_of(message) for message in talk.stored()] == ["next", "ok"] * 4
    assert_unique_ids(talk.stored())


@pytest.mark.contract("C5")
@every_axis
@pytest.mark.parametrize("name", STRATEGY_NAMES)
async def test_identical_turns_are_stored_each_time_although_the_history_is_compacted(
    streaming: bool, store_kind: str, per_call: bool, name: str, tmp_path: Path
) -> None:
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call)
    talk.after = make_strategy(name, talk.summarizer)
    talk.agent = talk.make_agent(talk.client)

    for _ in range(5):
        talk.client.script(Message("assistant", ["ok"]))
        await ask(talk.agent, "next", session=talk.session, streaming=streaming)

    assert [text_of(message) for message in without_summaries(talk.stored())] == ["next", "ok"] * 5


@pytest.mark.contract("C5")
@every_axis
async def test_identical_tool_turns_are_stored_each_time(
    streaming: bool, store_kind: str, per_call: bool, tmp_path: Path
) -> None:
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call)

    for _ in range(3):
        talk.client.script(call("1.0"), Message("assistant", ["ok"]))
        await ask(talk.agent, "next", session=talk.session, streaming=streaming)

    assert [message.role for message in talk.stored()] == ["user", "assistant", "tool", "assistant"] * 3
    assert_unique_ids(talk.stored())


async def _replaying_turns(talk: Talk, turns: int, *, with_ids: bool) -> list[str]:
    """Let the caller keep the transcript itself, and send all of it with every turn."""
    transcript: list[Message] = []
    said: list[str] = []
    for number in range(1, turns + 1):
        transcript.append(user(f"u{number}", message_id=f"user-{number}" if with_ids else None))
        answer = say(f"a{number}", message_id=f"answer-{number}" if with_ids else None)
        talk.client.script(copy.deepcopy(answer))
        await ask(talk.agent, copy.deepcopy(transcript), session=talk.session, streaming=talk.streaming)
        transcript.append(answer)
        said.extend([f"u{number}", f"a{number}"])
    return said


either_ids = pytest.mark.parametrize("with_ids", [False, True], ids=["no_ids", "ids"])


@pytest.mark.contract("C5")
@every_axis
@either_ids
async def test_a_replayed_transcript_is_stored_once(
    streaming: bool, store_kind: str, per_call: bool, with_ids: bool, tmp_path: Path
) -> None:
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call)

    said = await _replaying_turns(talk, 9, with_ids=with_ids)

    assert_stored_as_said(talk.stored(), said)
    assert_unique_ids(talk.stored())


@pytest.mark.contract("C5")
@every_axis
@either_ids
@pytest.mark.parametrize("name", STRATEGY_NAMES)
async def test_a_replayed_transcript_is_stored_once_after_compaction(
    streaming: bool, store_kind: str, per_call: bool, with_ids: bool, name: str, tmp_path: Path
) -> None:
    """Nine turns whose caller replays the transcript, over a compacted store: 83 messages for 18."""
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call)
    talk.after = make_strategy(name, talk.summarizer)
    talk.agent = talk.make_agent(talk.client)

    said = await _replaying_turns(talk, 9, with_ids=with_ids)

    assert_stored_as_said(talk.stored(), said)
    for number, request in enumerate(talk.client.requests, start=1):
        assert markers(request)[-1] == f"u{number}"


@pytest.mark.contract("C5")
@every_axis
async def test_a_replay_that_stops_half_way_and_goes_on_otherwise_is_stored(
    streaming: bool, store_kind: str, per_call: bool, tmp_path: Path
) -> None:
    """An edited transcript: the part that was stored is not stored again, what is new is."""
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call)
    await talk.turn()
    talk.client.script(say("a2"))

    await ask(
        talk.agent,
        [user("u1"), say("a1"), user("u2")],
        session=talk.session,
        streaming=streaming,
    )

    assert_stored_as_said(talk.stored(), ["u1", "a1", "u2", "a2"])


@pytest.mark.contract("C5")
@every_axis
async def test_an_input_without_an_assistant_message_is_no_replay(
    streaming: bool, store_kind: str, per_call: bool, tmp_path: Path
) -> None:
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call)
    talk.client.script(say("a1"), say("a2"))

    for _ in range(2):
        await ask(talk.agent, [user("first"), user("second")], session=talk.session, streaming=streaming)

    assert_stored_as_said(talk.stored(), ["first", "second", "a1", "first", "second", "a2"])


@pytest.mark.contract("C5")
@every_axis
async def test_what_is_asked_after_a_replay_is_asked_even_if_it_was_asked_before(
    streaming: bool, store_kind: str, per_call: bool, tmp_path: Path
) -> None:
    """The replay ends before the last user message: that one is the question, though it repeats the first."""
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call)
    talk.client.script(say("a1"), say("a2"), say("a3"))
    transcript: list[Message] = []
    for number in (1, 2, 3):
        transcript.append(user("again"))
        await ask(talk.agent, copy.deepcopy(transcript), session=talk.session, streaming=streaming)
        transcript.append(say(f"a{number}"))

    assert_stored_as_said(talk.stored(), ["again", "a1", "again", "a2", "again", "a3"])


@pytest.mark.contract("C5")
@both_modes
@both_persistences
async def test_a_replayed_tool_call_is_stored_once(streaming: bool, per_call: bool, tmp_path: Path) -> None:
    talk = Talk(make_store("memory", tmp_path), streaming, per_call)
    await talk.turn(calls=2)
    talk.client.script(say("a2"))
    from ._compaction_helpers import result

    replay = [user("u1"), call("1.0"), result("1.0"), call("1.1"), result("1.1"), say("a1"), user("u2")]
    await ask(talk.agent, replay, session=talk.session, streaming=streaming)

    assert_stored_as_said(talk.stored(), [*talk.said, "u2", "a2"])


@pytest.mark.contract("C5")
@both_modes
@both_persistences
async def test_a_provider_that_only_stores_does_not_store_a_turn_twice(
    streaming: bool, per_call: bool, tmp_path: Path
) -> None:
    """With ``load_messages=False`` the agent adds a second provider, of the same source id."""
    store = Store("memory", InMemoryHistoryProvider(load_messages=False))
    client = ScriptedChatClient([say("a1"), say("a2")])
    agent = Agent(
        client=client, context_providers=[store.provider], require_per_service_call_history_persistence=per_call
    )
    session = AgentSession()

    await ask(agent, user("u1"), session=session, streaming=streaming)
    await ask(agent, user("u2"), session=session, streaming=streaming)

    assert_stored_as_said(store.read(session), ["u1", "a1", "u2", "a2"])
