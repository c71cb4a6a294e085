# Copyright (c) Microsoft. All rights reserved.

"""The same conversation leaves the same durable history, streaming and not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ._compaction_helpers import (
    STRATEGY_NAMES,
    Talk,
    all_stores,
    assert_no_dangling_pointer,
    both_persistences,
    is_excluded,
    known,
    make_store,
    make_strategy,
    markers,
    project,
    summarized_by,
    summary_of,
    text_of,
    unpaired_calls,
)


def _durable(talk: Talk) -> list[dict[str, Any]]:
    """Return a history with its ids replaced by the order in which they stand there."""
    stored = talk.stored()
    order = {message.message_id: index for index, message in enumerate(stored)}
    return [
        {
            "role": message.role,
            "text": text_of(message),
            "covers": sorted(order.get(message_id, -1) for message_id in summary_of(message)),
            "covered_by": None if summarized_by(message) is None else order.get(summarized_by(message), -1),
            "excluded": is_excluded(message),
        }
        for message in stored
    ]


def _loaded(messages: list[Any]) -> list[tuple[str, str]]:
    return [(message.role, text_of(message)) for message in messages]


@pytest.mark.contract("C12")
@all_stores
@both_persistences
@pytest.mark.parametrize("in_run", [None, *STRATEGY_NAMES])
@pytest.mark.parametrize("after", [None, "summarization", "tool_results", "sliding_window"])
async def test_both_modes_leave_the_same_history(
    store_kind: str, per_call: bool, in_run: str | None, after: str | None, tmp_path: Path
) -> None:
    """Thirteen messages stored and seven loaded without streaming, ten and ten with it."""
    histories: list[list[dict[str, Any]]] = []
    prompts: list[list[tuple[str, str]]] = []
    for streaming in (False, True):
        talk = Talk(make_store(store_kind, tmp_path / str(streaming)), streaming, per_call)
        talk.in_run = None if in_run is None else make_strategy(in_run, talk.summarizer)
        talk.after = None if after is None else make_strategy(after, talk.summarizer)
        talk.agent = talk.make_agent(talk.client, talk.in_run)
        for calls in (3, 0, 2):
            await talk.turn(calls=calls)
        histories.append(_durable(talk))
        prompts.append(_loaded(await talk.load()))

    assert histories[1] == histories[0]
    assert prompts[1] == prompts[0]


@pytest.mark.contract("C12")
@both_persistences
@pytest.mark.parametrize("name", STRATEGY_NAMES)
async def test_both_modes_send_the_same_requests(per_call: bool, name: str, tmp_path: Path) -> None:
    sent: list[list[list[tuple[str, str]]]] = []
    for streaming in (False, True):
        talk = Talk(make_store("memory", tmp_path), streaming, per_call)
        talk.agent = talk.make_agent(talk.client, make_strategy(name, talk.summarizer))
        for calls in (3, 0, 2):
            await talk.turn(calls=calls, parallel=2)
        sent.append([_loaded(request) for request in talk.client.requests])

    assert sent[1] == sent[0]


@pytest.mark.contract("C12")
@both_persistences
@pytest.mark.parametrize("name", ["summarization", "tool_results"])
async def test_both_modes_leave_the_same_history_after_an_error(per_call: bool, name: str, tmp_path: Path) -> None:
    histories: list[list[dict[str, Any]]] = []
    for streaming in (False, True):
        talk = Talk(make_store("memory", tmp_path), streaming, per_call)
        talk.agent = talk.make_agent(talk.client, make_strategy(name, talk.summarizer))
        await talk.turn(calls=3)
        await talk.turn(calls=2, ends_with=RuntimeError("the model is away"))
        await talk.turn(calls=1)
        histories.append(_durable(talk))

    assert histories[1] == histories[0]


@pytest.mark.contract("C12")
@both_persistences
@pytest.mark.parametrize("streaming", [False, True], ids=["non_streaming", "streaming"])
async def test_the_stored_ids_are_the_ids_of_the_response(per_call: bool, streaming: bool, tmp_path: Path) -> None:
    """What the caller is given and what is stored are the same messages, in both modes."""
    talk = Talk(make_store("memory", tmp_path), streaming, per_call)

    response = await talk.turn(calls=2)

    assert response is not None
    returned = [message.message_id for message in response.messages]
    assert None not in returned
    assert returned == [message.message_id for message in talk.stored()][1:]


@pytest.mark.contract("C11")
@pytest.mark.parametrize("streaming", [False, True], ids=["non_streaming", "streaming"])
@pytest.mark.parametrize("name", ["summarization", "tool_results"])
@both_persistences
async def test_the_response_tells_what_the_run_said(streaming: bool, name: str, per_call: bool, tmp_path: Path) -> None:
    """A response has no caller's messages in it, so what of a summary reaches it is judged apart."""
    talk = Talk(make_store("memory", tmp_path), streaming, per_call)
    talk.agent = talk.make_agent(talk.client, make_strategy(name, talk.summarizer))
    await talk.turn(calls=3)

    response = await talk.turn(calls=4)

    assert response is not None
    said = {marker for marker in talk.said if marker[1] == "2"} - {"u2"}
    assert said <= set(markers(response.messages))
    assert said <= known(project(response.messages), talk.summarizer)
    assert_no_dangling_pointer(response.messages)
    assert unpaired_calls(project(response.messages)) == []


@pytest.mark.contract("C12")
@pytest.mark.parametrize("store_kind", ["memory", "file", "msgpack"])
@both_persistences
async def test_calls_are_stored_alike_in_both_modes(store_kind: str, per_call: bool, tmp_path: Path) -> None:
    """A call was stored before it had the id by which the loop knows it, and cost other tokens afterwards."""
    stored: list[list[tuple[str, bool]]] = []
    for streaming in (False, True):
        talk = Talk(make_store(store_kind, tmp_path / str(streaming)), streaming, per_call)
        await talk.turn(calls=2)
        stored.append([(c.type, c.id is not None) for message in talk.stored() for c in message.contents])

    assert stored[0] == stored[1]
    assert ("function_call", True) in stored[0]
