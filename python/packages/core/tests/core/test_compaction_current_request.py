# Copyright (c) Microsoft. All rights reserved.

"""What the user is asking now reaches the model with every request of the turn, whatever compacts."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import pytest

from agent_framework import (
    CharacterEstimatorTokenizer,
    ContextWindowCompactionStrategy,
    Message,
    SlidingWindowStrategy,
    SummarizationStrategy,
    TokenBudgetComposedStrategy,
    TruncationStrategy,
    annotate_message_groups,
    apply_compaction,
    chat_middleware,
)

from ._compaction_helpers import (
    STRATEGY_NAMES,
    Summarizer,
    Talk,
    ask,
    assert_paired,
    both_modes,
    both_persistences,
    call,
    cover,
    every_axis,
    is_excluded,
    make_store,
    make_strategy,
    markers,
    result,
    say,
    summary_message,
    text_of,
    user,
)

# region Inside a run


@pytest.mark.contract("C3")
@every_axis
@pytest.mark.parametrize("name", STRATEGY_NAMES)
async def test_the_current_request_is_in_every_prompt_of_a_long_turn(
    streaming: bool, store_kind: str, per_call: bool, name: str, tmp_path: Path
) -> None:
    """A second turn of twelve tool calls: seven to nine of its thirteen prompts had lost the request."""
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call)
    talk.in_run = make_strategy(name, talk.summarizer, tight=False)
    talk.agent = talk.make_agent(talk.client, talk.in_run)
    await talk.turn(calls=3)
    first = len(talk.client.requests)

    await talk.turn(calls=12)

    requests = talk.client.requests[first:]
    assert len(requests) == 13
    assert [number for number, request in enumerate(requests) if "u2" not in markers(request)] == []
    assert_paired(requests)


@pytest.mark.contract("C3")
@every_axis
@pytest.mark.parametrize("name", STRATEGY_NAMES)
async def test_everything_that_the_caller_gave_to_the_turn_stays(
    streaming: bool, store_kind: str, per_call: bool, name: str, tmp_path: Path
) -> None:
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call)
    talk.in_run = make_strategy(name, talk.summarizer)
    talk.agent = talk.make_agent(talk.client, talk.in_run)
    await talk.turn(calls=2)
    first = len(talk.client.requests)
    talk.client.script(*(call(f"2.{index}") for index in range(5)), say("a2"))

    await ask(talk.agent, [user("given"), user("asked")], session=talk.session, streaming=streaming)

    requests = talk.client.requests[first:]
    assert len(requests) == 6
    for request in requests:
        assert {"given", "asked"} <= set(markers(request))


@pytest.mark.contract("C3")
@both_modes
@pytest.mark.parametrize("name", STRATEGY_NAMES)
async def test_the_current_request_stays_without_a_session(streaming: bool, name: str, tmp_path: Path) -> None:
    talk = Talk(make_store("memory", tmp_path), streaming)
    agent = talk.make_agent(talk.client, make_strategy(name, talk.summarizer))
    talk.client.script(*(call(f"1.{index}") for index in range(8)), say("a1"))

    await ask(agent, user("u1"), streaming=streaming)

    assert len(talk.client.requests) == 9
    assert all("u1" in markers(request) for request in talk.client.requests)


@pytest.mark.contract("C3")
@every_axis
@pytest.mark.parametrize("name", STRATEGY_NAMES)
async def test_the_current_request_stays_when_a_middleware_sends_copies_of_it(
    streaming: bool, store_kind: str, per_call: bool, name: str, tmp_path: Path
) -> None:
    @chat_middleware
    async def copying(context: Any, call_next: Any) -> None:
        context.messages = copy.deepcopy(list(context.messages))
        await call_next()

    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call, middleware=[copying])
    talk.in_run = make_strategy(name, talk.summarizer)
    talk.agent = talk.make_agent(talk.client, talk.in_run)
    await talk.turn(calls=2)
    first = len(talk.client.requests)

    await talk.turn(calls=6)

    assert all("u2" in markers(request) for request in talk.client.requests[first:])


@pytest.mark.contract("C3")
@every_axis
async def test_what_marks_the_current_request_is_not_stored(
    streaming: bool, store_kind: str, per_call: bool, tmp_path: Path
) -> None:
    """The request of one turn is an ordinary message in the next: it can be summarized then."""
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call)
    talk.in_run = SummarizationStrategy(
        client=talk.summarizer,  # type: ignore[arg-type]
        target_count=1,
        threshold=0,
        max_summary_input_tokens=None,
    )
    talk.agent = talk.make_agent(talk.client, talk.in_run)

    for _ in range(3):
        await talk.turn(calls=2)

    last = talk.client.requests[-1]
    assert "u3" in markers(last)
    assert not {"u1", "u2"} & set(markers(last))
    assert {"u1", "u2"} <= talk.summarizer.known_from("\n".join(map(text_of, last)))


@pytest.mark.contract("C3")
@both_modes
async def test_a_strategy_of_somebody_else_may_exclude_the_request(streaming: bool, tmp_path: Path) -> None:
    async def keep_the_last_message(messages: list[Message]) -> bool:
        for message in messages[:-1]:
            message.additional_properties["_excluded"] = True
        return True

    talk = Talk(make_store("memory", tmp_path), streaming)
    agent = talk.make_agent(talk.client, keep_the_last_message)
    talk.client.script(say("a1"))

    await ask(agent, [user("u1"), user("u2")], streaming=streaming)

    assert markers(talk.client.requests[0]) == ["u2"]


# endregion

# region A bare list


def _answered_by(kind: str) -> list[Message]:
    if kind == "nothing":
        return []
    if kind == "tool_calls":
        return [call("2.0"), result("2.0"), call("2.1"), result("2.1"), call("2.2"), result("2.2")]
    if kind == "summary":
        covered = [cover(call("2.0", message_id="x1"), "s"), cover(result("2.0", message_id="x2"), "s")]
        return [summary_message("s", ["x1", "x2"]), *covered, call("2.1"), result("2.1"), call("2.2"), result("2.2")]
    raise ValueError(kind)


@pytest.mark.contract("C3")
@pytest.mark.parametrize("name", STRATEGY_NAMES)
@pytest.mark.parametrize("followed_by", ["nothing", "tool_calls", "summary"])
async def test_the_last_user_message_of_a_list_stays(name: str, followed_by: str) -> None:
    messages = [user("u1"), say("a1"), user("u2"), *_answered_by(followed_by)]

    for _ in range(2):
        projected = await apply_compaction(messages, strategy=make_strategy(name, Summarizer()))

    assert "u2" in markers(projected)


@pytest.mark.contract("C3")
@pytest.mark.parametrize(
    "strategy",
    [
        SlidingWindowStrategy(keep_last_groups=1),
        TruncationStrategy(max_n=1, compact_to=1),
        TruncationStrategy(max_n=20, compact_to=10, tokenizer=CharacterEstimatorTokenizer()),
    ],
    ids=["sliding_window", "truncation", "truncation_tokens"],
)
async def test_a_user_message_that_was_answered_may_go(strategy: Any) -> None:
    messages = [user("u1"), say("a1"), user("u2"), say("a2")]

    projected = await apply_compaction(messages, strategy=strategy)

    assert markers(projected) == ["a2"]


@pytest.mark.contract("C3")
async def test_an_answered_list_may_be_summarized_but_for_its_end() -> None:
    messages = [user("u1"), say("a1"), user("u2"), say("a2")]
    summarizer = Summarizer()

    projected = await apply_compaction(messages, strategy=make_strategy("summarization", summarizer))

    assert [text_of(message) for message in projected] == ["<summary 1>", text_of(messages[-1])]
    assert set(summarizer.times_read()) == {"u1", "a1", "u2"}


# endregion

# region System messages


_KEEPS_SYSTEM = {
    "sliding_window": SlidingWindowStrategy(keep_last_groups=1),
    "truncation": TruncationStrategy(max_n=2, compact_to=1),
    "truncation_tokens": TruncationStrategy(max_n=20, compact_to=10, tokenizer=CharacterEstimatorTokenizer()),
    "context_window": ContextWindowCompactionStrategy(max_context_window_tokens=40, max_output_tokens=10),
}


@pytest.mark.contract("C3")
@pytest.mark.parametrize("name", [*_KEEPS_SYSTEM, "summarization", "tool_results", "selective_tool_calls"])
async def test_a_system_message_stays_where_a_strategy_promises_it(name: str) -> None:
    strategy = _KEEPS_SYSTEM.get(name) or make_strategy(name, Summarizer())
    messages = [Message("system", ["[[rules]]"]), user("u1"), say("a1"), Message("system", ["[[more]]"]), user("u2")]

    projected = await apply_compaction(messages, strategy=strategy)

    assert {"rules", "more", "u2"} <= set(markers(projected))


# endregion

# region Budgets that are too small


def _too_small(name: str) -> Any:
    tokenizer = CharacterEstimatorTokenizer()
    match name:
        case "truncation_tokens":
            return TruncationStrategy(max_n=10, compact_to=5, tokenizer=tokenizer)
        case "token_budget":
            return TokenBudgetComposedStrategy(token_budget=10, tokenizer=tokenizer, strategies=[])
        case "token_budget_over_truncation":
            return TokenBudgetComposedStrategy(
                token_budget=10,
                tokenizer=tokenizer,
                strategies=[TruncationStrategy(max_n=10, compact_to=5, tokenizer=tokenizer)],
            )
        case "context_window":
            return ContextWindowCompactionStrategy(max_context_window_tokens=12, max_output_tokens=2)
        case _:
            raise ValueError(name)


@pytest.mark.contract("C3")
@pytest.mark.parametrize(
    "name", ["truncation_tokens", "token_budget", "token_budget_over_truncation", "context_window"]
)
async def test_protected_messages_over_the_budget_stay_with_one_warning(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    messages = [user("u1"), say("a1"), user("u2"), call("2.0"), result("2.0"), call("2.1"), result("2.1")]
    messages[2].contents[0].text += " " + "x" * 400

    with caplog.at_level(logging.WARNING):
        projected = await apply_compaction(messages, strategy=_too_small(name))

    assert "u2" in markers(projected)
    assert not any(is_excluded(message) for message in messages if "u2" in markers([message]))
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1, [record.getMessage() for record in warnings]


@pytest.mark.contract("C3")
@pytest.mark.parametrize("name", ["truncation_tokens", "token_budget", "context_window"])
async def test_a_budget_that_fits_gives_no_warning(name: str, caplog: pytest.LogCaptureFixture) -> None:
    messages = [user(f"u{number}") if number % 2 else say(f"a{number}") for number in range(1, 30)]
    annotate_message_groups(messages)

    with caplog.at_level(logging.WARNING):
        projected = await apply_compaction(messages, strategy=make_strategy(name))

    assert 0 < len(projected) < len(messages)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


# endregion


@pytest.mark.contract("C3")
@both_modes
@both_persistences
async def test_a_run_over_its_budget_warns_once(
    streaming: bool, per_call: bool, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    talk = Talk(make_store("memory", tmp_path), streaming, per_call)
    strategy = TruncationStrategy(max_n=2, compact_to=1, tokenizer=CharacterEstimatorTokenizer())
    talk.agent = talk.make_agent(talk.client, strategy)

    with caplog.at_level(logging.WARNING):
        await talk.turn(calls=4)

    assert len(talk.client.requests) == 5
    assert len([record for record in caplog.records if "budget" in record.getMessage()]) == 1
