# Copyright (c) Microsoft. All rights reserved.

"""Per-service-call persistence stores what was said, not what a strategy left out at that moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_framework import Message, chat_middleware

from ._compaction_helpers import (
    STRATEGY_NAMES,
    SUMMARIZING,
    Talk,
    all_stores,
    assert_no_dangling_pointer,
    assert_paired,
    assert_stored_as_said,
    both_modes,
    is_excluded,
    known,
    make_store,
    make_strategy,
    markers,
    summarized_by,
    summary_of,
    text_of,
    unpaired_calls,
)

either_loading = pytest.mark.parametrize("skip_excluded", [False, True], ids=["load_all", "skip_excluded"])


def _talk(
    store_kind: str, path: Path, streaming: bool, name: str, *, skip_excluded: bool = False, **options: Any
) -> Talk:
    store_options = {"skip_excluded": True} if skip_excluded and store_kind != "serialising" else {}
    talk = Talk(make_store(store_kind, path, **store_options), streaming, per_call=True, **options)
    talk.in_run = make_strategy(name, talk.summarizer)
    talk.agent = talk.make_agent(talk.client, talk.in_run)
    return talk


@pytest.mark.contract("C6")
@both_modes
@all_stores
@either_loading
@pytest.mark.parametrize("name", STRATEGY_NAMES)
async def test_the_next_request_has_no_call_without_its_result(
    streaming: bool, store_kind: str, skip_excluded: bool, name: str, tmp_path: Path
) -> None:
    """Public issue 8546: a result was stored as excluded, and its call as included."""
    talk = _talk(store_kind, tmp_path, streaming, name, skip_excluded=skip_excluded)

    await talk.turn(calls=3)
    loaded = await talk.load()
    await talk.turn(calls=1)

    assert unpaired_calls(loaded) == []
    assert_paired(talk.client.requests)
    assert_stored_as_said(talk.stored(), talk.said)


@pytest.mark.contract("C6")
@both_modes
@all_stores
@pytest.mark.parametrize("name", [name for name in STRATEGY_NAMES if name not in SUMMARIZING])
async def test_an_exclusion_of_the_moment_is_not_stored(
    streaming: bool, store_kind: str, name: str, tmp_path: Path
) -> None:
    talk = _talk(store_kind, tmp_path, streaming, name)

    for calls in (3, 0, 2):
        await talk.turn(calls=calls)

    assert [text_of(m) for m in talk.stored() if is_excluded(m) and summarized_by(m) is None] == []
    assert set(talk.said) <= known(await talk.load(), talk.summarizer)


@pytest.mark.contract("C6")
@both_modes
@all_stores
@pytest.mark.parametrize("per_call", [False, True], ids=["per_run", "per_call"])
@pytest.mark.parametrize("name", sorted(SUMMARIZING))
async def test_a_summary_made_inside_the_run_is_stored_whole_and_once(
    streaming: bool, store_kind: str, per_call: bool, name: str, tmp_path: Path
) -> None:
    talk = _talk(store_kind, tmp_path, streaming, name)
    talk.per_call = per_call
    talk.agent = talk.make_agent(talk.client, talk.in_run)

    for calls in (4, 0, 3):
        await talk.turn(calls=calls)

    stored = talk.stored()
    summaries = [text_of(message) for message in stored if summary_of(message)]
    assert summaries
    assert len(set(summaries)) == len(summaries)
    if name == "summarization":
        assert summaries == [f"<summary {number}>" for number in range(1, len(talk.summarizer.inputs) + 1)]
    ids = {message.message_id for message in stored}
    for summary in (message for message in stored if summary_of(message)):
        assert ids & set(summary_of(summary)), "a summary names nothing that is stored"
    assert_no_dangling_pointer(stored)


@pytest.mark.contract("C6")
@both_modes
@all_stores
async def test_a_summary_names_the_durable_messages_that_it_tells(
    streaming: bool, store_kind: str, tmp_path: Path
) -> None:
    talk = _talk(store_kind, tmp_path, streaming, "summarization")

    for calls in (4, 0, 3):
        await talk.turn(calls=calls)

    stored = talk.stored()
    by_id = {message.message_id: message for message in stored}
    assert any(summary_of(message) for message in stored)
    for summary in (message for message in stored if summary_of(message)):
        read = talk.summarizer.inputs[int(text_of(summary).strip("<>").split()[1]) - 1]
        for covered_id in summary_of(summary):
            assert covered_id in by_id, f"{text_of(summary)} names a message that is not stored"
            for marker in markers([by_id[covered_id]]):
                assert f"[[{marker}]]" in read or f'"{marker}"' in read


@pytest.mark.contract("C6")
@both_modes
@all_stores
async def test_a_middleware_outside_the_persisting_one_sees_and_rewrites_only_new_messages(
    streaming: bool, store_kind: str, tmp_path: Path
) -> None:
    """Its rewrite is what is stored, as documented."""
    seen: list[list[str]] = []

    @chat_middleware
    async def redact(context: Any, call_next: Any) -> None:
        seen.append(markers(context.messages))
        context.messages = [
            Message("user", [text_of(message).replace("please", "[redacted]")]) if message.role == "user" else message
            for message in context.messages
        ]
        await call_next()

    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call=True, middleware=[redact])

    await talk.turn(calls=1)
    await talk.turn()

    assert seen == [["u1"], ["r1.0"], ["u2"]]
    assert_stored_as_said(talk.stored(), talk.said)
    assert [text_of(m) for m in talk.stored() if m.role == "user"] == ["[[u1]] [redacted]", "[[u2]] [redacted]"]
