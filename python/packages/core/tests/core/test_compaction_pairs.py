# Copyright (c) Microsoft. All rights reserved.

"""A call and its result go together: in every request, however the list grew."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from agent_framework import Message, SlidingWindowStrategy, annotate_message_groups, apply_compaction, tool
from agent_framework._compaction import append_compaction_message

from ._compaction_helpers import (
    STRATEGY_NAMES,
    Summarizer,
    Talk,
    ask,
    assert_paired,
    both_modes,
    both_persistences,
    call,
    every_axis,
    make_store,
    make_strategy,
    markers,
    project,
    result,
    say,
    summary_of,
    unpaired_calls,
    user,
)

# region Lists that grow


@pytest.mark.contract("C2")
@pytest.mark.parametrize("name", STRATEGY_NAMES)
@pytest.mark.parametrize("appended", ["plain", "with_helper"])
@pytest.mark.parametrize("shape", ["one_message", "two_messages"])
async def test_a_result_that_comes_late_keeps_both_pairs(name: str, appended: str, shape: str) -> None:
    """`[call c1, call c2, user, result c1, text]` is annotated, then `result c2` comes: no orphan result."""
    calls = [call("1.0", "1.1")] if shape == "one_message" else [call("1.0"), call("1.1")]
    messages = [*calls, user("u2"), result("1.0"), say("a1")]
    annotate_message_groups(messages)
    if appended == "plain":
        messages.append(result("1.1"))
    else:
        append_compaction_message(messages, result("1.1"))

    projected = await apply_compaction(messages, strategy=make_strategy(name, Summarizer()))

    assert unpaired_calls(projected) == []


@pytest.mark.contract("C2")
@pytest.mark.parametrize("keep", range(1, 6))
async def test_a_window_of_any_width_keeps_both_pairs(keep: int) -> None:
    messages = [call("1.0"), call("1.1"), user("u2"), result("1.0"), say("a1")]
    annotate_message_groups(messages)
    messages.append(result("1.1"))

    projected = await apply_compaction(messages, strategy=SlidingWindowStrategy(keep_last_groups=keep))

    assert unpaired_calls(projected) == []


@pytest.mark.contract("C2")
@pytest.mark.parametrize("name", STRATEGY_NAMES)
async def test_two_single_calls_answered_across_each_other_keep_their_pairs(name: str) -> None:
    messages = [user("u1"), call("1.0"), user("u2"), call("1.1"), user("u3"), result("1.1")]
    annotate_message_groups(messages)
    messages.extend([say("a1"), result("1.0"), user("u4")])

    projected = await apply_compaction(messages, strategy=make_strategy(name, Summarizer()))

    assert unpaired_calls(projected) == []


_PARTS: dict[str, Any] = {
    "calls": lambda: call("1.0"),
    "more": lambda: call("1.1"),
    "first": lambda: result("1.0"),
    "second": lambda: result("1.1"),
    "user": lambda: user("u2"),
    "text": lambda: say("a1"),
}


def _growths() -> list[tuple[str, ...]]:
    return [
        order
        for order in itertools.permutations(_PARTS)
        if order.index("calls") < order.index("first") and order.index("more") < order.index("second")
    ]


@pytest.mark.contract("C2")
@pytest.mark.parametrize("name", STRATEGY_NAMES)
@pytest.mark.parametrize("tight", [True, False], ids=["tight", "loose"])
async def test_pairs_are_kept_however_the_list_grew(name: str, tight: bool) -> None:
    """The list is annotated after every message, and compacted once its calls are answered."""
    for order in _growths():
        messages: list[Message] = [user("u1")]
        for part in order:
            messages.append(_PARTS[part]())
            annotate_message_groups(messages)
        messages.append(user("u3"))

        projected = await apply_compaction(messages, strategy=make_strategy(name, Summarizer(), tight=tight))

        assert unpaired_calls(projected) == [], order


@pytest.mark.contract("C2")
@pytest.mark.parametrize("name", STRATEGY_NAMES)
@pytest.mark.parametrize("tight", [True, False], ids=["tight", "loose"])
async def test_pairs_are_kept_when_every_step_compacts(name: str, tight: bool) -> None:
    for order in _growths():
        messages: list[Message] = [user("u1")]
        strategy = make_strategy(name, Summarizer(), tight=tight)
        for part in order:
            messages.append(_PARTS[part]())
            await apply_compaction(messages, strategy=strategy)
        messages.append(user("u3"))

        projected = await apply_compaction(messages, strategy=strategy)

        assert unpaired_calls(projected) == [], order


@pytest.mark.contract("C2")
@pytest.mark.parametrize("keep", range(1, 6))
async def test_a_window_of_any_width_keeps_pairs_however_the_list_grew(keep: int) -> None:
    for order in _growths():
        messages: list[Message] = [user("u1")]
        for part in order:
            messages.append(_PARTS[part]())
            annotate_message_groups(messages)

        projected = await apply_compaction(messages, strategy=SlidingWindowStrategy(keep_last_groups=keep))

        assert unpaired_calls(projected) == [], order


# endregion

# region Calls that wait


@pytest.mark.contract("C2")
@pytest.mark.parametrize("name", STRATEGY_NAMES)
@pytest.mark.parametrize("rounds", [1, 3])
async def test_an_unresolved_call_is_never_excluded_or_summarized(name: str, rounds: int) -> None:
    messages = [user("u1"), call("1.0"), user("u2"), say("a2"), user("u3"), say("a3"), user("u4")]

    for _ in range(rounds):
        projected = await apply_compaction(messages, strategy=make_strategy(name, Summarizer()))

    assert "c1.0" in markers(projected)


@pytest.mark.contract("C2")
@pytest.mark.parametrize("name", STRATEGY_NAMES)
async def test_a_call_of_which_one_part_waits_is_never_excluded_or_summarized(name: str) -> None:
    messages = [user("u1"), call("1.0", "1.1"), result("1.0"), say("a1"), user("u2"), say("a2"), user("u3")]

    projected = await apply_compaction(messages, strategy=make_strategy(name, Summarizer()))

    assert {"c1.0", "c1.1", "r1.0"} <= set(markers(projected))


@pytest.mark.contract("C2")
@pytest.mark.parametrize("name", STRATEGY_NAMES)
async def test_a_call_that_waited_is_told_once_when_its_result_has_come(name: str) -> None:
    """A pending call was collapsed, then answered and collapsed again: two summaries with one id."""
    summarizer = Summarizer()
    strategy = make_strategy(name, summarizer)
    messages = [user("u1"), call("1.0"), user("u2")]
    await apply_compaction(messages, strategy=strategy)
    messages.extend([result("1.0"), say("a1"), user("u3")])

    projected = await apply_compaction(messages, strategy=strategy)

    assert unpaired_calls(projected) == []
    ids = [message.message_id for message in messages]
    assert len(set(ids)) == len(ids)
    covering = [m for m in messages if set(summary_of(m)) & {x.message_id for x in messages if "c1.0" in markers([x])}]
    assert len(covering) <= 1
    assert project(messages) == projected


# endregion

# region Runs


@pytest.mark.contract("C2")
@every_axis
@pytest.mark.parametrize("name", STRATEGY_NAMES)
@pytest.mark.parametrize("parallel", [1, 2, 3])
async def test_every_request_holds_calls_with_their_results(
    streaming: bool, store_kind: str, per_call: bool, name: str, parallel: int, tmp_path: Path
) -> None:
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call)
    talk.in_run = make_strategy(name, talk.summarizer)
    talk.agent = talk.make_agent(talk.client, talk.in_run)

    for calls in (3, 0, 4):
        await talk.turn(calls=calls, parallel=parallel)

    assert_paired(talk.client.requests)
    assert unpaired_calls(await talk.load()) == []


@pytest.mark.contract("C2")
@both_modes
@both_persistences
@pytest.mark.parametrize("in_run", [None, *STRATEGY_NAMES])
@pytest.mark.parametrize("after", STRATEGY_NAMES)
@pytest.mark.parametrize("skip_excluded", [False, True], ids=["load_all", "skip_excluded"])
async def test_two_strategies_never_part_a_pair(
    streaming: bool, per_call: bool, in_run: str | None, after: str, skip_excluded: bool, tmp_path: Path
) -> None:
    talk = Talk(make_store("memory", tmp_path, skip_excluded=skip_excluded), streaming, per_call)
    talk.in_run = None if in_run is None else make_strategy(in_run, talk.summarizer)
    talk.after = make_strategy(after, talk.summarizer)
    talk.agent = talk.make_agent(talk.client, talk.in_run)

    for calls in (2, 0, 3, 1):
        await talk.turn(calls=calls, parallel=2)

    assert_paired(talk.client.requests)
    assert unpaired_calls(await talk.load()) == []


@pytest.mark.contract("C2")
@every_axis
@pytest.mark.parametrize("name", STRATEGY_NAMES)
async def test_a_call_id_that_a_provider_uses_again_keeps_its_pairs(
    streaming: bool, store_kind: str, per_call: bool, name: str, tmp_path: Path
) -> None:
    """Some providers number the calls of each answer from zero."""
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call)
    talk.in_run = make_strategy(name, talk.summarizer)
    talk.agent = talk.make_agent(talk.client, talk.in_run)

    for number in (1, 2, 3):
        talk.client.script(call("0"), call("0"), say(f"a{number}"))
        await ask(talk.agent, user(f"u{number}"), session=talk.session, streaming=streaming)

    assert_paired(talk.client.requests)


@pytest.mark.contract("C2")
@every_axis
@pytest.mark.parametrize("name", STRATEGY_NAMES)
@pytest.mark.parametrize("place", ["in_run", "before", "after"])
@pytest.mark.parametrize("approved", [True, False], ids=["approved", "rejected"])
async def test_a_call_that_waits_for_an_approval_is_kept_until_it_is_answered(
    streaming: bool, store_kind: str, per_call: bool, name: str, place: str, approved: bool, tmp_path: Path
) -> None:
    executed: list[str] = []

    @tool(approval_mode="always_require")
    def work(step: str) -> str:
        """Do one step of work, if the user agrees."""
        executed.append(step)
        return f"[[r{step[1:]}]] done"

    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call)
    await talk.turn()
    setattr(talk, place, make_strategy(name, talk.summarizer))
    agent = talk.make_agent(talk.client, talk.in_run)
    talk.client.script(call("2.0"))
    # The tool of this run stands in for the one that needs no approval.
    agent.default_options["tools"] = [work]
    response = await ask(agent, user("u2"), session=talk.session, streaming=streaming)
    requests = response.user_input_requests
    assert len(requests) == 1

    talk.client.script(say("a2"))
    answer = Message("user", [requests[0].to_function_approval_response(approved=approved)])
    response = await ask(agent, answer, session=talk.session, streaming=streaming)

    assert executed == (["c2.0"] if approved else [])
    assert markers([response.messages[-1]]) == ["a2"]
    assert_paired(talk.client.requests)
    assert unpaired_calls(await talk.load()) == []


# endregion
