# Copyright (c) Microsoft. All rights reserved.

"""What compaction costs, counted in work and never in time: a summary is paid for once, and everything is linear."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_framework import ChatMiddleware, Message, SummarizationStrategy, apply_compaction, included_messages

from ._compaction_helpers import (
    Summarizer,
    Talk,
    all_stores,
    assert_all_told,
    assert_prompts_tell_everything,
    assert_sound_history,
    both_modes,
    both_persistences,
    every_axis,
    make_store,
    markers,
    summary_message,
    summary_of,
)


def _summarization(summarizer: Summarizer, *, target: int = 4, threshold: int = 2) -> SummarizationStrategy:
    return SummarizationStrategy(
        client=summarizer,  # type: ignore[arg-type]
        target_count=target,
        threshold=threshold,
    )


# region A summary is paid for once


@pytest.mark.contract("C13")
@both_modes
@all_stores
@both_persistences
async def test_a_long_tool_loop_stays_compacted(
    streaming: bool, store_kind: str, per_call: bool, tmp_path: Path
) -> None:
    """Thirty-six calls: requests grew to 35 messages and the summarizer read 753,963 characters."""
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call, result_size=1419)
    talk.agent = talk.make_agent(talk.client, _summarization(talk.summarizer))

    await talk.turn(calls=36)

    assert len(talk.client.requests) == 37
    assert max(talk.client.request_sizes) <= 8
    assert {marker: n for marker, n in talk.summarizer.times_read().items() if n > 1} == {}
    assert all("u1" in markers(request) for request in talk.client.requests)
    assert_all_told(talk, await talk.load())


@pytest.mark.contract("C13")
@both_modes
@both_persistences
@pytest.mark.parametrize("store_kind", ["memory", "file"])
async def test_what_the_summarizer_reads_grows_with_what_is_new(
    streaming: bool, per_call: bool, store_kind: str, tmp_path: Path
) -> None:
    read: dict[int, int] = {}
    for calls in (16, 32, 64):
        talk = Talk(make_store(store_kind, tmp_path / str(calls)), streaming, per_call, result_size=1000)
        talk.agent = talk.make_agent(talk.client, _summarization(talk.summarizer))
        await talk.turn(calls=calls)
        read[calls] = talk.summarizer.characters

    assert read[16] > 0
    assert read[64] - read[32] <= 2.2 * (read[32] - read[16])


@pytest.mark.contract("C13")
@every_axis
async def test_a_history_is_not_summarized_again_in_the_next_turn(
    streaming: bool, store_kind: str, per_call: bool, tmp_path: Path
) -> None:
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call)
    talk.agent = talk.make_agent(talk.client, _summarization(talk.summarizer))

    for _ in range(8):
        await talk.turn(calls=2)

    assert talk.summarizer.inputs
    assert {marker: n for marker, n in talk.summarizer.times_read().items() if n > 1} == {}
    assert_prompts_tell_everything(talk)


@pytest.mark.contract("C13")
@every_axis
async def test_a_before_strategy_does_not_summarize_the_same_history_again(
    streaming: bool, store_kind: str, per_call: bool, tmp_path: Path
) -> None:
    """Five calls in eight short turns, each over the whole history, and nothing was kept."""
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call)
    talk.before = _summarization(talk.summarizer)
    talk.agent = talk.make_agent(talk.client)

    for _ in range(8):
        await talk.turn()

    assert {marker: n for marker, n in talk.summarizer.times_read().items() if n > 1} == {}
    assert_prompts_tell_everything(talk)
    assert len([message for message in talk.stored() if summary_of(message)]) == len(talk.summarizer.inputs)


@pytest.mark.contract("C13")
@both_modes
@pytest.mark.parametrize("store_kind", ["memory", "file"])
async def test_a_before_strategy_keeps_prompts_short(streaming: bool, store_kind: str, tmp_path: Path) -> None:
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call=False)
    talk.before = _summarization(talk.summarizer)
    talk.agent = talk.make_agent(talk.client)

    for _ in range(12):
        await talk.turn()

    assert talk.summarizer.inputs
    assert max(talk.client.request_sizes) <= 8


@pytest.mark.contract("C13")
@every_axis
async def test_an_after_strategy_does_not_summarize_the_same_history_again(
    streaming: bool, store_kind: str, per_call: bool, tmp_path: Path
) -> None:
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call)
    talk.after = _summarization(talk.summarizer)
    talk.agent = talk.make_agent(talk.client)

    for _ in range(8):
        await talk.turn(calls=1)

    assert talk.summarizer.inputs
    assert {marker: n for marker, n in talk.summarizer.times_read().items() if n > 1} == {}


@pytest.mark.contract("C13")
@every_axis
async def test_strategies_in_three_places_pay_for_a_summary_once(
    streaming: bool, store_kind: str, per_call: bool, tmp_path: Path
) -> None:
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call)
    talk.in_run = talk.before = talk.after = _summarization(talk.summarizer)
    talk.agent = talk.make_agent(talk.client, talk.in_run)

    for _ in range(6):
        await talk.turn(calls=3)

    assert talk.summarizer.inputs
    assert {marker: n for marker, n in talk.summarizer.times_read().items() if n > 1} == {}
    assert_all_told(talk, await talk.load())


@pytest.mark.contract("C13")
@every_axis
@pytest.mark.parametrize("after", [False, True], ids=["in_run", "in_run_and_after"])
async def test_a_reused_id_does_not_make_a_summary_be_paid_twice(
    streaming: bool, store_kind: str, per_call: bool, after: bool, tmp_path: Path
) -> None:
    """The provider gives every answer the same id."""
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call, message_id_of_answers="response")
    talk.in_run = _summarization(talk.summarizer)
    talk.after = talk.in_run if after else None
    talk.agent = talk.make_agent(talk.client, talk.in_run)

    for calls in (3, 3, 1, 4):
        await talk.turn(calls=calls)

    assert talk.summarizer.inputs
    assert {marker: n for marker, n in talk.summarizer.times_read().items() if n > 1} == {}
    assert_all_told(talk, await talk.load())


# endregion

# region Somebody's own strategy


def _own_strategy(talk: Talk) -> Any:
    """Return a strategy that calls every summary it makes by the same id."""

    async def summarize(messages: list[Message]) -> bool:
        shown = included_messages(messages)
        if len(shown) <= 3:
            return False
        answer = await talk.summarizer.get_response([Message("system", [""]), *shown[:-2]])
        ids = [message.message_id or "" for message in shown[:-2]]
        messages.insert(0, summary_message("summary-1", ids, answer.text))
        return True

    return summarize


@pytest.mark.contract("C13")
@both_modes
@all_stores
@pytest.mark.parametrize("place", ["in_run", "before", "after"])
async def test_one_id_for_every_summary_does_not_make_it_be_paid_twice(
    streaming: bool, store_kind: str, place: str, tmp_path: Path
) -> None:
    talk = Talk(make_store(store_kind, tmp_path), streaming, attach_compaction=True)
    setattr(talk, place, _own_strategy(talk))
    talk.agent = talk.make_agent(talk.client, talk.in_run)

    for _ in range(7):
        await talk.turn()

    assert len(talk.summarizer.inputs) >= 5
    assert {marker: n for marker, n in talk.summarizer.times_read().items() if n > 1} == {}
    assert max(talk.client.request_sizes) <= 5
    assert len([message for message in talk.stored() if summary_of(message)]) == len(talk.summarizer.inputs)
    assert_sound_history(talk, await talk.load())


class _SummarizeUnderOneId(ChatMiddleware):
    def __init__(self, talk: Talk) -> None:
        self._strategy = _own_strategy(talk)

    async def process(self, context: Any, call_next: Any) -> None:
        context.messages = await apply_compaction(list(context.messages), strategy=self._strategy)
        await call_next()


@pytest.mark.contract("C6")
@both_modes
@pytest.mark.parametrize("store_kind", ["memory", "file"])
async def test_every_summary_of_a_middleware_that_uses_one_id_is_stored(
    streaming: bool, store_kind: str, tmp_path: Path
) -> None:
    talk = Talk(make_store(store_kind, tmp_path), streaming, attach_compaction=True)
    talk.middleware = [_SummarizeUnderOneId(talk)]
    talk.agent = talk.make_agent(talk.client)

    for calls in (2, 2, 0, 1):
        await talk.turn(calls=calls)

    assert {marker: n for marker, n in talk.summarizer.times_read().items() if n > 1} == {}
    assert len([message for message in talk.stored() if summary_of(message)]) == len(talk.summarizer.inputs)
    assert_sound_history(talk, await talk.load())


# endregion
