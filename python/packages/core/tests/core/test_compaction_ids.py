# Copyright (c) Microsoft. All rights reserved.

"""Ids: unique across a session's whole history, given before anything is stored, and free of charge."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from agent_framework import (
    Agent,
    Message,
    TruncationStrategy,
    annotate_message_groups,
    included_token_count,
)

from ._compaction_helpers import (
    STRATEGY_NAMES,
    SUMMARIZING,
    RecordingTokenizer,
    ScriptedChatClient,
    Summarizer,
    Talk,
    all_stores,
    ask,
    assert_paired,
    assert_stored_as_said,
    assert_unique_ids,
    both_modes,
    both_persistences,
    call,
    every_axis,
    make_store,
    make_strategy,
    markers,
    result,
    say,
    summary_message,
    summary_of,
    text_of,
    user,
)


@pytest.mark.contract("C4")
@both_modes
@all_stores
@both_persistences
async def test_messages_get_an_id_before_they_are_stored(
    streaming: bool, store_kind: str, per_call: bool, tmp_path: Path
) -> None:
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call)

    await talk.turn(calls=2)
    await talk.turn()

    assert_unique_ids(talk.stored())
    assert_stored_as_said(talk.stored(), talk.said)


@pytest.mark.contract("C4")
@every_axis
async def test_a_stored_id_stays_the_same(streaming: bool, store_kind: str, per_call: bool, tmp_path: Path) -> None:
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call, in_run=None)
    talk.in_run = make_strategy("tool_results")
    talk.agent = talk.make_agent(talk.client, talk.in_run)
    await talk.turn(calls=2)
    first_turn = [m.message_id for m in talk.stored()]
    assert None not in first_turn

    await talk.turn(calls=1)

    assert [m.message_id for m in talk.stored()][: len(first_turn)] == first_turn


@pytest.mark.contract("C4")
@every_axis
@pytest.mark.parametrize("in_run", [None, *sorted(SUMMARIZING)])
@pytest.mark.parametrize("after", STRATEGY_NAMES)
async def test_ids_of_messages_and_summaries_are_unique(
    streaming: bool, store_kind: str, per_call: bool, in_run: str | None, after: str, tmp_path: Path
) -> None:
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call)
    talk.in_run = None if in_run is None else make_strategy(in_run, talk.summarizer)
    talk.after = make_strategy(after, talk.summarizer)
    talk.agent = talk.make_agent(talk.client, talk.in_run)

    for calls in (2, 1, 2, 0):
        await talk.turn(calls=calls)

    assert_unique_ids(talk.stored())


@pytest.mark.contract("C4")
@both_modes
@both_persistences
@pytest.mark.parametrize("name", STRATEGY_NAMES)
async def test_ids_are_unique_although_only_the_end_of_the_history_is_loaded(
    streaming: bool, per_call: bool, name: str, tmp_path: Path
) -> None:
    """An automatic id must not be the id of a message that is stored and not loaded."""
    talk = Talk(make_store("serialising", tmp_path), streaming, per_call)
    talk.in_run = make_strategy(name, talk.summarizer, tight=False)
    talk.agent = talk.make_agent(talk.client, talk.in_run)
    everything = talk.store.provider.get_messages

    async def the_last_four(session_id: Any, **kwargs: Any) -> list[Message]:
        messages = await everything(session_id, **kwargs)
        start = max(0, len(messages) - 4)
        while start < len(messages) and messages[start].role == "tool":
            start += 1
        return messages[start:]

    talk.store.provider.get_messages = the_last_four

    for calls in (3, 2, 3, 0, 2):
        await talk.turn(calls=calls)

    assert_unique_ids(talk.stored())


@pytest.mark.contract("C4")
@pytest.mark.parametrize("name", sorted(SUMMARIZING))
async def test_summaries_made_one_after_the_other_have_different_ids(name: str) -> None:
    messages: list[Message] = []
    summarizer = Summarizer()
    strategy = make_strategy(name, summarizer)

    for number in range(6):
        messages.extend([user(f"u{number}"), call(f"{number}.0"), result(f"{number}.0"), say(f"a{number}")])
        annotate_message_groups(messages)
        await strategy(messages)
        annotate_message_groups(messages)

    ids = [message.message_id for message in messages]
    assert len([message for message in messages if summary_of(message)]) >= 5
    assert len(set(ids)) == len(ids)


@pytest.mark.contract("C4")
def test_two_lists_never_get_the_same_generated_ids() -> None:
    """Two parts of one history are annotated apart: what is loaded now, and what was stored before."""
    first = [user("u1"), say("a1"), user("u2")]
    second = [user("u3"), say("a3"), user("u4")]

    annotate_message_groups(first)
    annotate_message_groups(second)

    assert not {m.message_id for m in first} & {m.message_id for m in second}


@pytest.mark.contract("C4")
async def test_two_histories_of_the_same_length_get_different_summary_ids() -> None:
    ids: set[str | None] = set()
    for _ in range(2):
        messages = [user("u1", message_id="m1"), say("a1", message_id="m2"), user("u2", message_id="m3")]
        annotate_message_groups(messages)
        assert await make_strategy("summarization", Summarizer())(messages)
        ids.update(message.message_id for message in messages if summary_of(message))

    assert len(ids) == 2


@pytest.mark.contract("C4")
async def test_a_call_collapsed_before_and_after_its_result_gives_summaries_with_different_ids() -> None:
    messages = [user("u1"), call("1.0", "1.1"), result("1.0"), user("u2")]
    strategy = make_strategy("tool_results")
    annotate_message_groups(messages)
    await strategy(messages)
    messages.extend([result("1.1"), say("a2"), user("u3")])
    annotate_message_groups(messages)
    await strategy(messages)

    ids = [message.message_id for message in messages]
    assert len(set(ids)) == len(ids)


# region The same id again


@pytest.mark.contract("C4")
@every_axis
async def test_an_id_that_arrives_again_with_other_content_is_given_a_new_one(
    streaming: bool, store_kind: str, per_call: bool, tmp_path: Path
) -> None:
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call, message_id_of_answers="response")

    for calls in (2, 0, 1):
        await talk.turn(calls=calls)

    assert_stored_as_said(talk.stored(), talk.said)
    assert_unique_ids(talk.stored())
    assert_paired(talk.client.requests)
    for request in talk.client.requests:
        ids = [message.message_id for message in request if message.message_id]
        assert len(set(ids)) == len(ids), "an id entered the run a second time"


@pytest.mark.contract("C4")
@every_axis
async def test_an_input_with_a_known_id_and_other_content_is_given_a_new_one(
    streaming: bool, store_kind: str, per_call: bool, tmp_path: Path
) -> None:
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call)
    for number in (1, 2, 3):
        talk.client.script(say(f"a{number}"))
        await ask(talk.agent, user(f"u{number}", message_id="input"), session=talk.session, streaming=streaming)

    assert_stored_as_said(talk.stored(), ["u1", "a1", "u2", "a2", "u3", "a3"])
    assert_unique_ids(talk.stored())
    assert [markers(request)[-1] for request in talk.client.requests] == ["u1", "u2", "u3"]


@pytest.mark.contract("C4")
@every_axis
async def test_an_id_that_arrives_again_with_the_same_content_is_the_same_message(
    streaming: bool, store_kind: str, per_call: bool, tmp_path: Path
) -> None:
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call)
    transcript = [user("u1", message_id="first"), say("a1", message_id="second")]
    talk.client.script(say("a2", message_id="fourth"), say("a3"))

    await ask(talk.agent, [*transcript, user("u2", message_id="third")], session=talk.session, streaming=streaming)
    again = [*transcript, user("u2", message_id="third"), say("a2", message_id="fourth"), user("u3")]
    await ask(talk.agent, copy.deepcopy(again), session=talk.session, streaming=streaming)

    assert_stored_as_said(talk.stored(), ["u1", "a1", "u2", "a2", "u3", "a3"])
    assert [m.message_id for m in talk.stored()][:4] == ["first", "second", "third", "fourth"]


@pytest.mark.contract("C4")
@every_axis
@pytest.mark.parametrize("content", ["other", "same"])
async def test_a_message_being_asked_is_never_covered_by_name_alone(
    streaming: bool, store_kind: str, per_call: bool, content: str, tmp_path: Path
) -> None:
    """The history has a summary that names the id which the caller's new question happens to have."""
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call, attach_compaction=True)
    state = talk.session.state.setdefault(talk.store.source_id, {})
    await talk.store.provider.save_messages(
        talk.session.session_id,
        [user("u1", message_id="question"), say("a1", message_id="answer")],
        state=state,
    )
    await talk.store.provider.save_messages(
        talk.session.session_id, [summary_message("s", ["question", "answer"], text="so far")], state=state
    )
    question = user("u1" if content == "same" else "u2", message_id="question")
    talk.client.script(say("a2"))

    await ask(talk.agent, question, session=talk.session, streaming=streaming)

    request = talk.client.requests[0]
    assert [text_of(message) for message in request] == ["so far", text_of(question)]
    if content == "other":
        assert_unique_ids(talk.stored())
        assert_stored_as_said(talk.stored(), ["u1", "a1", "u2", "a2"])


@pytest.mark.contract("C4")
@every_axis
async def test_the_messages_of_the_caller_are_left_as_they_were(
    streaming: bool, store_kind: str, per_call: bool, tmp_path: Path
) -> None:
    """Ids are given to copies of the input: the caller's object can be used again."""
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call)
    question = user("u1")
    talk.client.script(say("a1"), say("a2"), say("a3"))

    for _ in range(3):
        await ask(talk.agent, question, session=talk.session, streaming=streaming)

    assert question.message_id is None
    assert_stored_as_said(talk.stored(), ["u1", "a1", "u1", "a2", "u1", "a3"])
    assert_unique_ids(talk.stored())


# endregion

# region What an id costs


@pytest.mark.contract("C4")
def test_a_generated_id_costs_no_tokens() -> None:
    def conversation() -> list[Message]:
        return [user("u1"), call("1.0"), result("1.0"), say("a1")]

    tokenizer = RecordingTokenizer()
    messages = conversation()
    annotate_message_groups(messages, tokenizer=tokenizer)

    assert all(message.message_id for message in messages)
    for message, text in zip(messages, tokenizer.texts, strict=True):
        assert message.message_id not in text


@pytest.mark.contract("C4")
def test_an_estimate_is_the_same_before_and_after_ids_are_generated() -> None:
    tokenizer = RecordingTokenizer()
    messages = [user("u1"), call("1.0"), result("1.0"), say("a1")]
    annotate_message_groups(messages, tokenizer=tokenizer)
    before = included_token_count(messages)
    again = copy.deepcopy(messages)
    for message in again:
        message.additional_properties.pop("_group")

    annotate_message_groups(again, tokenizer=tokenizer)

    assert included_token_count(again) == before
    first, second = tokenizer.texts[: len(messages)], tokenizer.texts[len(messages) :]
    assert first == second


@pytest.mark.contract("C4")
@every_axis
async def test_a_generated_id_costs_no_tokens_after_it_was_stored(
    streaming: bool, store_kind: str, per_call: bool, tmp_path: Path
) -> None:
    tokenizer = RecordingTokenizer()
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call)
    talk.in_run = TruncationStrategy(max_n=100_000, compact_to=50_000, tokenizer=tokenizer)
    talk.agent = talk.make_agent(talk.client, talk.in_run)

    await talk.turn(calls=2)
    await talk.turn(calls=1)

    ids = [message.message_id for message in talk.stored()]
    assert None not in ids
    assert tokenizer.texts
    assert [text for text in tokenizer.texts if any(message_id in text for message_id in ids if message_id)] == []


@pytest.mark.contract("C4")
@both_modes
async def test_in_run_requests_do_not_depend_on_generated_ids(streaming: bool, tmp_path: Path) -> None:
    """The same conversation under the same budget is cut at the same place every time."""
    cuts: list[list[int]] = []
    for _ in range(2):
        client = ScriptedChatClient()
        talk = Talk(make_store("memory", tmp_path), streaming)
        talk.client = client
        talk.agent = talk.make_agent(client, make_strategy("truncation_tokens"))
        await talk.turn(calls=6)
        cuts.append(client.request_sizes)

    assert cuts[0] == cuts[1]


# endregion


@pytest.mark.contract("C4")
def test_a_generated_id_of_a_call_costs_no_tokens() -> None:
    tokenizer = RecordingTokenizer()
    named, unnamed = call("1.0", message_id="m1"), call("1.0", message_id="m1")
    named.contents[0].id = f"af-call-{'0' * 32}"

    annotate_message_groups([named], tokenizer=tokenizer)
    annotate_message_groups([unnamed], tokenizer=tokenizer)

    assert tokenizer.texts[0] == tokenizer.texts[1]


@pytest.mark.contract("C4")
@both_modes
@pytest.mark.parametrize("agent", [False, True], ids=["client", "agent"])
async def test_what_is_being_asked_is_not_covered_by_name_alone(streaming: bool, agent: bool) -> None:
    """The caller uses an id again that a summary in the same list names."""
    client = ScriptedChatClient([say("a2")])
    messages = [summary_message("s", ["m1"]), user("u2", message_id="m1")]

    if agent:
        await ask(Agent(client=client), messages, streaming=streaming)
    elif streaming:
        async for _ in client.get_response(messages, stream=True):
            pass
    else:
        await client.get_response(messages)

    assert markers(client.requests[0]) == ["u2"]
    assert messages[1].message_id == "m1", "the caller's own"
