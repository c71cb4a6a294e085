# Copyright (c) Microsoft. All rights reserved.

"""What was said is stored as it was said, and stays: whatever compacts, wherever, and whatever goes wrong half-way."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from agent_framework import AgentSession, Message, apply_compaction, create_harness_agent

from ._compaction_helpers import (
    STRATEGY_NAMES,
    SUMMARIZING,
    Summarizer,
    Talk,
    all_stores,
    assert_all_told,
    assert_covered_by_stored_summaries,
    assert_no_dangling_pointer,
    assert_nothing_lost,
    assert_paired,
    assert_prompts_tell_everything,
    assert_sound_history,
    assert_stored_as_said,
    assert_unique_ids,
    both_modes,
    both_persistences,
    cover,
    every_axis,
    make_store,
    make_strategy,
    markers,
    project,
    say,
    summary_of,
    user,
    work_tool,
)

either_loading = pytest.mark.parametrize("skip_excluded", [False, True], ids=["load_all", "skip_excluded"])


def _talk(
    store_kind: str, path: Path, streaming: bool, per_call: bool, *, skip_excluded: bool = False, **places: str | None
) -> Talk:
    """Return a conversation with a named strategy in each given place: ``in_run``, ``before``, ``after``."""
    options = {"skip_excluded": True} if skip_excluded else {}
    talk = Talk(make_store(store_kind, path, **options), streaming, per_call)
    for place, name in places.items():
        setattr(talk, place, None if name is None else make_strategy(name, talk.summarizer))
    talk.agent = talk.make_agent(talk.client, talk.in_run)
    return talk


@pytest.mark.contract("C1")
@every_axis
@pytest.mark.parametrize("name", STRATEGY_NAMES)
@either_loading
async def test_a_strategy_in_the_run_loses_nothing(
    streaming: bool, store_kind: str, per_call: bool, skip_excluded: bool, name: str, tmp_path: Path
) -> None:
    talk = _talk(store_kind, tmp_path, streaming, per_call, skip_excluded=skip_excluded, in_run=name)

    for _ in range(4):
        await talk.turn(calls=3)

    assert_all_told(talk, await talk.load())


@pytest.mark.contract("C1")
@both_modes
@both_persistences
@either_loading
@pytest.mark.parametrize("in_run", [None, *STRATEGY_NAMES])
@pytest.mark.parametrize("after", STRATEGY_NAMES)
async def test_two_strategies_lose_nothing(
    streaming: bool, per_call: bool, skip_excluded: bool, in_run: str | None, after: str, tmp_path: Path
) -> None:
    """A user message vanished in 10 of 72 configurations, where an automatic id was used a second time."""
    talk = _talk("memory", tmp_path, streaming, per_call, skip_excluded=skip_excluded, in_run=in_run, after=after)

    for calls in (2, 0, 3, 1):
        await talk.turn(calls=calls)

    assert_all_told(talk, await talk.load())
    if SUMMARIZING.issuperset({in_run or after, after}):
        assert_prompts_tell_everything(talk)


@pytest.mark.contract("C1")
@every_axis
@pytest.mark.parametrize("before", STRATEGY_NAMES)
async def test_a_strategy_before_the_run_loses_nothing(
    streaming: bool, store_kind: str, per_call: bool, before: str, tmp_path: Path
) -> None:
    talk = _talk(store_kind, tmp_path, streaming, per_call, before=before)

    for calls in (2, 0, 2, 0):
        await talk.turn(calls=calls)

    assert_all_told(talk, await talk.load())


@pytest.mark.contract("C1")
@every_axis
@pytest.mark.parametrize("after", STRATEGY_NAMES)
@either_loading
async def test_a_strategy_after_the_run_loses_nothing(
    streaming: bool, store_kind: str, per_call: bool, skip_excluded: bool, after: str, tmp_path: Path
) -> None:
    talk = _talk(store_kind, tmp_path, streaming, per_call, skip_excluded=skip_excluded, after=after)

    for calls in (2, 0, 2, 0):
        await talk.turn(calls=calls)

    assert_all_told(talk, await talk.load())


@pytest.mark.contract("C1")
@both_modes
@all_stores
@both_persistences
async def test_three_strategies_over_every_store_lose_nothing(
    streaming: bool, store_kind: str, per_call: bool, tmp_path: Path
) -> None:
    talk = _talk(
        store_kind,
        tmp_path,
        streaming,
        per_call,
        in_run="tool_results",
        before="summarization",
        after="summarization",
    )

    for calls in (2, 0, 3, 1, 0):
        await talk.turn(calls=calls)

    assert_all_told(talk, await talk.load())


@pytest.mark.contract("C1")
@both_modes
@pytest.mark.parametrize("store_kind", ["memory", "file", "msgpack"])
@either_loading
@pytest.mark.parametrize("places", ["window", "before", "after", "both"])
async def test_a_harness_agent_loses_nothing(
    streaming: bool, store_kind: str, skip_excluded: bool, places: str, tmp_path: Path
) -> None:
    talk = _talk(store_kind, tmp_path, streaming, True, skip_excluded=skip_excluded)
    options: dict[str, Any] = {"max_context_window_tokens": 500, "max_output_tokens": 50}
    if places != "window":
        options = {
            f"{place}_compaction_strategy": make_strategy("summarization", talk.summarizer, tight=False)
            for place in ("before", "after")
            if places in (place, "both")
        }
    talk.agent = create_harness_agent(
        talk.client,
        tools=[work_tool()],
        history_provider=talk.store.provider,
        disable_todo=True,
        disable_mode=True,
        disable_file_memory=True,
        disable_web_search=True,
        **options,
    )

    for calls in (3, 0, 4, 2, 0):
        await talk.turn(calls=calls)

    assert_sound_history(talk, await talk.load())


@pytest.mark.contract("C1")
@both_modes
@both_persistences
@pytest.mark.parametrize("in_run", [None, *sorted(SUMMARIZING)])
@pytest.mark.parametrize("after", [None, *sorted(SUMMARIZING)])
async def test_a_second_store_that_only_keeps_loses_nothing(
    streaming: bool, per_call: bool, in_run: str | None, after: str | None, tmp_path: Path
) -> None:
    """An audit store next to the one that is loaded: both hold what was said."""
    talk = _talk("memory", tmp_path, streaming, per_call, in_run=in_run, after=after)
    audit = make_store("file", tmp_path, load_messages=False, source_id="audit")
    talk.agent.context_providers.append(audit.provider)

    for calls in (3, 0, 2):
        await talk.turn(calls=calls)

    assert_sound_history(talk, await talk.load())
    kept = audit.read(talk.session)
    assert_stored_as_said(kept, talk.said)
    assert_unique_ids(kept)
    assert_no_dangling_pointer(kept)
    assert_nothing_lost(kept, project(kept), talk.said, talk.summarizer)


# region Errors half-way


@pytest.mark.contract("C1")
@every_axis
@pytest.mark.parametrize("name", sorted(SUMMARIZING))
@pytest.mark.parametrize("calls", [0, 1, 3])
@either_loading
async def test_a_model_error_half_way_loses_nothing(
    streaming: bool, store_kind: str, per_call: bool, skip_excluded: bool, name: str, calls: int, tmp_path: Path
) -> None:
    talk = _talk(store_kind, tmp_path, streaming, per_call, skip_excluded=skip_excluded, in_run=name)
    await talk.turn(calls=3)
    await talk.turn(calls=1)
    said_before = list(talk.said)

    await talk.turn(calls=calls, ends_with=RuntimeError("the model is away"))

    loaded = await talk.load()
    stored = talk.stored()
    assert [m for m in markers(m for m in stored if not summary_of(m)) if m in said_before] == said_before
    assert_nothing_lost(stored, loaded, markers(m for m in stored if not summary_of(m)), talk.summarizer)
    assert_covered_by_stored_summaries(stored, loaded)


async def _exclude_and_fail(messages: list[Message]) -> bool:
    """Somebody's own strategy: excludes and removes before it has its summary, which does not come."""
    for message in messages[:2]:
        cover(message, "summary-1")
    del messages[1]
    raise RuntimeError("the summarizer is away")


@pytest.mark.contract("C1")
async def test_a_strategy_that_fails_half_way_leaves_the_list_as_it_was() -> None:
    messages = [user("u1", message_id="m1"), say("a1", message_id="m2"), user("u2", message_id="m3")]

    with pytest.raises(RuntimeError, match="away"):
        await apply_compaction(messages, strategy=_exclude_and_fail)

    assert markers(messages) == markers(project(messages)) == ["u1", "a1", "u2"]
    assert_no_dangling_pointer(messages)


@pytest.mark.contract("C1")
@every_axis
@either_loading
async def test_a_summarizer_error_loses_nothing(
    streaming: bool, store_kind: str, per_call: bool, skip_excluded: bool, tmp_path: Path
) -> None:
    talk = Talk(make_store(store_kind, tmp_path, skip_excluded=skip_excluded), streaming, per_call)
    talk.summarizer = Summarizer(fail_on=lambda number: number % 2 == 0)
    talk.in_run = make_strategy("summarization", talk.summarizer)
    talk.after = make_strategy("summarization", talk.summarizer)
    talk.agent = talk.make_agent(talk.client, talk.in_run)

    for _ in range(4):
        await talk.turn(calls=2)

    assert_all_told(talk, await talk.load())


@pytest.mark.contract("C1")
@both_modes
@both_persistences
async def test_a_store_error_loses_nothing(streaming: bool, per_call: bool, tmp_path: Path) -> None:
    """The summary could not be saved: then nothing may be left out on its account."""
    talk = _talk("serialising", tmp_path, streaming, per_call, after="summarization")
    await talk.turn(calls=2)
    await talk.turn(calls=1)
    save = talk.store.provider.save_messages
    refused = 0

    async def refuse_summaries(session_id: Any, messages: Any, **kwargs: Any) -> None:
        nonlocal refused
        if any(summary_of(message) for message in messages):
            refused += 1
            raise OSError("the disk is full")
        await save(session_id, messages, **kwargs)

    talk.store.provider.save_messages = refuse_summaries
    with contextlib.suppress(OSError):
        await talk.turn()
    talk.store.provider.save_messages = save

    assert refused, "the summary was never offered to the store"
    loaded = await talk.load()
    assert_stored_as_said(talk.stored(), talk.said)
    assert_nothing_lost(talk.stored(), loaded, talk.said, talk.summarizer)


# endregion

# region Round trips


@pytest.mark.contract("C1")
@both_modes
@both_persistences
@pytest.mark.parametrize("in_run", [None, *sorted(SUMMARIZING)])
@pytest.mark.parametrize("after", [None, *sorted(SUMMARIZING)])
@either_loading
async def test_a_session_round_trip_between_turns_loses_nothing(
    streaming: bool, per_call: bool, skip_excluded: bool, in_run: str | None, after: str | None, tmp_path: Path
) -> None:
    talk = _talk("memory", tmp_path, streaming, per_call, skip_excluded=skip_excluded, in_run=in_run, after=after)

    for calls in (2, 0, 3, 1):
        await talk.turn(calls=calls)
        talk.session = AgentSession.from_dict(json.loads(json.dumps(talk.session.to_dict())))

    assert_all_told(talk, await talk.load())


@pytest.mark.contract("C1")
@both_modes
@both_persistences
@pytest.mark.parametrize("store_kind", ["file", "msgpack"])
@either_loading
async def test_a_new_process_over_the_same_file_loses_nothing(
    streaming: bool, per_call: bool, skip_excluded: bool, store_kind: str, tmp_path: Path
) -> None:
    talk = _talk(
        store_kind,
        tmp_path,
        streaming,
        per_call,
        skip_excluded=skip_excluded,
        in_run="tool_results",
        after="summarization",
    )

    for calls in (2, 0, 3, 1):
        await talk.turn(calls=calls)
        talk.session = AgentSession(session_id=talk.session.session_id)
        talk.store = make_store(store_kind, tmp_path, skip_excluded=skip_excluded)
        talk.agent = talk.make_agent(talk.client, talk.in_run)

    assert_all_told(talk, await talk.load())


# endregion

# region Missing and repeated ids


@pytest.mark.contract("C1")
@every_axis
@pytest.mark.parametrize("name", STRATEGY_NAMES)
@either_loading
async def test_a_provider_that_reuses_one_id_for_every_answer_loses_nothing(
    streaming: bool, store_kind: str, per_call: bool, skip_excluded: bool, name: str, tmp_path: Path
) -> None:
    """An old summary that names the reused id must not hide the answer that has it now."""
    talk = _talk(store_kind, tmp_path, streaming, per_call, skip_excluded=skip_excluded, in_run=name, after=name)
    talk.message_id_of_answers = "response"

    for calls in (2, 0, 2, 1):
        await talk.turn(calls=calls)

    assert_all_told(talk, await talk.load())


@pytest.mark.contract("C1")
@both_modes
@both_persistences
@either_loading
@pytest.mark.parametrize("in_run", sorted(SUMMARIZING))
@pytest.mark.parametrize("after", STRATEGY_NAMES)
async def test_two_strategies_over_one_id_for_every_answer_lose_nothing(
    streaming: bool, per_call: bool, skip_excluded: bool, in_run: str, after: str, tmp_path: Path
) -> None:
    """What a summary of the run covers is told by the ids that its messages are stored under."""
    talk = _talk("memory", tmp_path, streaming, per_call, skip_excluded=skip_excluded)
    talk.in_run = make_strategy(in_run, talk.summarizer, tight=False)
    talk.after = make_strategy(after, talk.summarizer, tight=False)
    talk.message_id_of_answers = "response"
    talk.agent = talk.make_agent(talk.client, talk.in_run)

    for calls in (0, 0, 0, 3, 1):
        await talk.turn(calls=calls)
        assert_sound_history(talk, await talk.load())


@pytest.mark.contract("C1")
@every_axis
@pytest.mark.parametrize("name", sorted(SUMMARIZING))
async def test_one_id_for_every_answer_loses_nothing_in_a_store_that_drops(
    streaming: bool, store_kind: str, per_call: bool, name: str, tmp_path: Path
) -> None:
    """The message that an old summary names is gone; a new one under its name is another message."""
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call, provider_options={"retain_excluded": False})
    talk.after = make_strategy(name, talk.summarizer)
    talk.message_id_of_answers = "response"
    talk.agent = talk.make_agent(talk.client)

    for calls in (1, 0, 0, 2, 1):
        await talk.turn(calls=calls)

    assert_prompts_tell_everything(talk)
    assert_paired(talk.client.requests)
    assert_unique_ids(talk.stored())


@pytest.mark.contract("C1")
@both_modes
@both_persistences
async def test_messages_stored_without_ids_by_an_earlier_release_are_not_lost(
    streaming: bool, per_call: bool, tmp_path: Path
) -> None:
    talk = _talk("memory", tmp_path, streaming, per_call, in_run="summarization", after="tool_results")
    old = [Message("user", ["[[u1]] old"]), Message("assistant", ["[[a1]] old"])]
    talk.session.state["in_memory"] = {"messages": old}
    talk.said, talk.turns = ["u1", "a1"], 1

    for calls in (2, 0, 2):
        await talk.turn(calls=calls)

    loaded = await talk.load()
    assert_stored_as_said(talk.stored(), talk.said)
    assert_nothing_lost(talk.stored(), loaded, talk.said, talk.summarizer)


@pytest.mark.contract("C1")
@both_modes
@both_persistences
@either_loading
async def test_flags_left_by_an_earlier_release_hide_nothing(
    streaming: bool, per_call: bool, skip_excluded: bool, tmp_path: Path
) -> None:
    """A store written by an unpatched release names summaries that are not there: what they hid comes back."""
    talk = _talk("memory", tmp_path, streaming, per_call, skip_excluded=skip_excluded)
    talk.attach_compaction = True
    talk.agent = talk.make_agent(talk.client)
    old = [cover(user("u1", message_id="msg_0"), "summary_7"), cover(say("a1", message_id="msg_1"), "summary_7")]
    talk.session.state["in_memory"] = {"messages": old}
    talk.said, talk.turns = ["u1", "a1"], 1

    await talk.turn()

    assert markers(talk.client.requests[0]) == ["u1", "a1", "u2"]


# endregion
