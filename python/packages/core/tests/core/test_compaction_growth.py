# Copyright (c) Microsoft. All rights reserved.

"""How the work grows: with the history, not with its square. Work is counted as visits to messages, never as time.

Histories have 1,000 and 5,000 messages. Set ``AGENT_FRAMEWORK_TEST_GROWTH=full`` for 10,000 and 50,000.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_framework import (
    AgentSession,
    CharacterEstimatorTokenizer,
    ContextWindowCompactionStrategy,
    InMemoryHistoryProvider,
    Message,
    SelectiveToolCallCompactionStrategy,
    SlidingWindowStrategy,
    SummarizationStrategy,
    TokenBudgetComposedStrategy,
    ToolResultCompactionStrategy,
    TruncationStrategy,
    annotate_message_groups,
    apply_compaction,
)
from agent_framework._compaction import append_compaction_message

from ._compaction_helpers import (
    STRATEGY_NAMES,
    RecordingTokenizer,
    ScriptedChatClient,
    Store,
    Summarizer,
    Talk,
    ask,
    both_modes,
    both_persistences,
    call,
    make_store,
    project,
    result,
    say,
    summary_message,
    summary_of,
    text_of,
    user,
)

SMALL, LARGE = (10_000, 50_000) if os.environ.get("AGENT_FRAMEWORK_TEST_GROWTH") == "full" else (1_000, 5_000)
FEW, MANY = 200, 400


class _Visits:
    """Counts how often an attribute of any message is read, and stops what goes on for too long."""

    def __init__(self) -> None:
        self.count = 0
        self.limit = math.inf

    @contextlib.contextmanager
    def counting(self, monkeypatch: pytest.MonkeyPatch, limit: float = math.inf) -> Iterator[None]:
        self.count, self.limit = 0, limit
        read = object.__getattribute__

        def visit(message: Message, name: str) -> Any:
            self.count += 1
            if self.count > self.limit:
                self.limit = math.inf
                pytest.fail(f"more than {limit:.0f} visits")
            return read(message, name)

        with monkeypatch.context() as patch:
            patch.setattr(Message, "__getattribute__", visit)
            yield


_START = 400
"""Visits that one message may cost in the smaller history, so that a quadratic walk is stopped early."""


async def _grows(
    monkeypatch: pytest.MonkeyPatch, work: Any, *, small: int, large: int, exponent: float, start: int = _START
) -> None:
    """Assert that the visits of ``work(size)`` grow with no more than the given exponent."""
    visits = _Visits()
    with visits.counting(monkeypatch, limit=start * small):
        prepared = await work(small)
    with visits.counting(monkeypatch, limit=start * small):
        await prepared()
    first = visits.count
    assert first >= small, "nothing was counted"
    with visits.counting(monkeypatch, limit=start * large):
        prepared = await work(large)
    with visits.counting(monkeypatch, limit=first * (large / small) ** exponent):
        await prepared()


def _history(size: int) -> list[Message]:
    """Return a conversation with a tool call in each turn of five messages."""
    messages: list[Message] = []
    turn = 0
    while len(messages) < size:
        turn += 1
        step = f"{turn}.0"
        messages.extend([user(f"u{turn}"), call(step), result(step), say(f"a{turn}"), say(f"b{turn}")])
    return messages[:size]


def _strategies(size: int) -> dict[str, Any]:
    """Return each strategy twice: it removes nearly everything, or keeps about half of the history."""
    tokenizer = CharacterEstimatorTokenizer()
    strategies: dict[str, Any] = {}
    for name, keep in (("all", 10), ("half", size // 2)):
        groups = max(1, keep // 5)
        tokens = keep * 40
        strategies |= {
            f"sliding_window-{name}": SlidingWindowStrategy(keep_last_groups=keep),
            f"truncation-{name}": TruncationStrategy(max_n=keep, compact_to=keep),
            f"truncation_tokens-{name}": TruncationStrategy(max_n=tokens, compact_to=tokens, tokenizer=tokenizer),
            f"selective_tool_calls-{name}": SelectiveToolCallCompactionStrategy(keep_last_tool_call_groups=groups),
            f"tool_results-{name}": ToolResultCompactionStrategy(keep_last_tool_call_groups=groups),
            f"summarization-{name}": SummarizationStrategy(
                client=Summarizer(),  # type: ignore[arg-type]
                target_count=keep,
                threshold=0,
                max_summary_input_tokens=None,
            ),
            f"token_budget-{name}": TokenBudgetComposedStrategy(
                token_budget=tokens,
                tokenizer=tokenizer,
                strategies=[ToolResultCompactionStrategy(keep_last_tool_call_groups=groups)],
            ),
            f"context_window-{name}": ContextWindowCompactionStrategy(
                max_context_window_tokens=tokens + 10, max_output_tokens=10, keep_last_tool_call_groups=groups
            ),
        }
    return strategies


# region One list


@pytest.mark.contract("C18")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", _strategies(100))
async def test_a_strategy_is_linear_in_the_history(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(size: int) -> Any:
        messages, strategy = _history(size), _strategies(size)[name]

        async def compact() -> None:
            projected = await apply_compaction(messages, strategy=strategy)
            assert 0 < len(projected) < size

        return compact

    await _grows(monkeypatch, work, small=SMALL, large=LARGE, exponent=1.2)


@pytest.mark.contract("C18")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", _strategies(100))
async def test_a_strategy_is_linear_in_a_history_that_was_compacted_before(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(size: int) -> Any:
        messages, strategy = _history(size), _strategies(size)[name]
        await apply_compaction(messages, strategy=strategy)
        messages.extend([user("u0"), say("a0"), user("again")])

        async def compact() -> None:
            await apply_compaction(messages, strategy=strategy)

        return compact

    await _grows(monkeypatch, work, small=SMALL, large=LARGE, exponent=1.2)


@pytest.mark.contract("C18")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shape", ["turns", "parallel", "late", "one_call"])
async def test_annotating_is_linear_in_the_history(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def messages_of(size: int) -> list[Message]:
        match shape:
            case "turns":
                return _history(size)
            case "parallel":
                steps = [f"1.{index}" for index in range(size // 2)]
                return [*(call(step) for step in steps), *(result(step) for step in reversed(steps))]
            case "late":
                steps = [f"1.{index}" for index in range(size // 3)]
                first = [message for step in steps for message in (call(step), user(f"u{step}"))]
                return [*first, *(result(step) for step in steps)]
            case _:
                return [call("1.0"), *(result("1.0") for _ in range(size - 1))]

    async def work(size: int) -> Any:
        messages = messages_of(size)

        async def annotate() -> None:
            annotate_message_groups(messages, tokenizer=CharacterEstimatorTokenizer())
            annotate_message_groups(messages, force_reannotate=True)

        return annotate

    await _grows(monkeypatch, work, small=SMALL, large=LARGE, exponent=1.2)


@pytest.mark.contract("C18")
@pytest.mark.timeout(600)
async def test_every_message_is_tokenized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = RecordingTokenizer()
    messages = _history(SMALL)

    annotate_message_groups(messages, tokenizer=tokenizer)
    for index in range(50):
        append_compaction_message(messages, user(f"more{index}"), tokenizer=tokenizer)

    assert tokenizer.calls == SMALL + 50


@pytest.mark.contract("C18")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("summaries", ["one", "many", "nested"])
async def test_projecting_is_linear_in_the_history(summaries: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def summaries_of(messages: list[Message]) -> list[Message]:
        ids = [message.message_id or "" for message in messages]
        if summaries == "one":
            return [summary_message("s", ids[:-1])]
        if summaries == "many":
            return [summary_message(f"s{start}", ids[start : start + 5]) for start in range(0, len(ids) - 5, 5)]
        return [
            summary_message(f"s{index}", [message_id, *([f"s{index - 1}"] if index else [])])
            for index, message_id in enumerate(ids[:-1])
        ]

    async def work(size: int) -> Any:
        messages = _history(size // 2)
        for index, message in enumerate(messages):
            message.message_id = f"m{index}"
        messages.extend(summaries_of(messages))

        async def run() -> None:
            assert 0 < len(project(messages)) < size // 2

        return run

    await _grows(monkeypatch, work, small=SMALL, large=LARGE, exponent=1.2)


@pytest.mark.contract("C18")
@pytest.mark.timeout(600)
def test_the_depth_of_nested_summaries_is_not_limited_by_recursion() -> None:
    depth = 5_000
    messages: list[Message] = [user("u0", message_id="m0")]
    covered = "m0"
    for index in range(depth):
        messages.append(summary_message(f"s{index}", [covered], text=f"summary of depth {index}"))
        covered = f"s{index}"
    messages.append(user("u1", message_id="m1"))

    for order in (messages, [*reversed(messages[:-1]), messages[-1]]):
        assert [text_of(m) for m in project(list(order))] == [f"summary of depth {depth - 1}", text_of(messages[-1])]


@pytest.mark.contract("C18")
@both_modes
@pytest.mark.timeout(600)
async def test_the_depth_of_summaries_that_a_middleware_nests_is_not_limited_by_recursion(streaming: bool) -> None:
    from agent_framework import chat_middleware

    depth = 3_000

    @chat_middleware
    async def nest(context: Any, call_next: Any) -> None:
        first, *rest = context.messages
        chain: list[Message] = []
        covered = first.message_id or ""
        for index in range(depth):
            chain.append(summary_message(f"s{index}", [covered]))
            covered = f"s{index}"
        context.messages = [*chain, first, *rest]
        await call_next()

    client = ScriptedChatClient([say("a1")], middleware=[nest])
    caller = [user("u1", message_id="m1"), user("u2", message_id="m2")]

    if streaming:
        stream = client.get_response(caller, stream=True)
        async for _ in stream:
            pass
        await stream.get_final_response()
    else:
        await client.get_response(caller)

    assert any(m.message_id == f"s{depth - 1}" for m in caller)


@pytest.mark.contract("C18")
@pytest.mark.timeout(600)
async def test_accepting_summaries_is_linear_in_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many summaries, each of some messages, made by a middleware in one call."""
    from agent_framework import chat_middleware

    @chat_middleware
    async def summarize(context: Any, call_next: Any) -> None:
        messages = list(context.messages)
        made: list[Message] = []
        for start in range(0, len(messages) - 5, 5):
            ids = [message.message_id or "" for message in messages[start : start + 5]]
            made.append(summary_message(f"s{start}", ids))
        context.messages = [*made, messages[-1]]
        await call_next()

    async def work(size: int) -> Any:
        client = ScriptedChatClient([say("a1")], middleware=[summarize], keep_requests=False)
        messages = _history(size)
        for index, message in enumerate(messages):
            message.message_id = f"m{index}"

        async def run() -> None:
            await client.get_response(messages)
            assert sum(bool(summary_of(message)) for message in messages) == len(range(0, size - 5, 5))

        return run

    await _grows(monkeypatch, work, small=SMALL, large=LARGE, exponent=1.2)


# endregion

# region The provider


@pytest.mark.contract("C18")
@pytest.mark.timeout(600)
@both_persistences
@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("name", STRATEGY_NAMES)
async def test_the_provider_is_linear_in_the_history(
    per_call: bool, place: str, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def work(size: int) -> Any:
        strategy = _strategies(size)[f"{name}-all"]
        talk = Talk(
            make_store("memory", tmp_path),
            per_call=per_call,
            client_options={"keep_requests": False},
            **{place: strategy},
        )
        talk.session.state["in_memory"] = {"messages": _history(size)}
        talk.client.script(call("now"), say("a"))

        async def run() -> None:
            await ask(talk.agent, user("u"), session=talk.session)

        return run

    await _grows(monkeypatch, work, small=SMALL, large=LARGE, exponent=1.2)


# endregion

# region A tool loop


def _loop_strategy(name: str) -> Any:
    match name:
        case "sliding_window":
            return SlidingWindowStrategy(keep_last_groups=3)
        case "truncation":
            return TruncationStrategy(max_n=8, compact_to=4)
        case "truncation_tokens":
            return TruncationStrategy(max_n=400, compact_to=200, tokenizer=CharacterEstimatorTokenizer())
        case "selective_tool_calls":
            return SelectiveToolCallCompactionStrategy(keep_last_tool_call_groups=2)
        case "summarization":
            return SummarizationStrategy(client=Summarizer(), target_count=4, threshold=2)  # type: ignore[arg-type]
        case "context_window":
            return ContextWindowCompactionStrategy(
                max_context_window_tokens=500, max_output_tokens=50, keep_last_tool_call_groups=1
            )
        case _:
            raise ValueError(name)


_LOOP_STRATEGIES = [
    "sliding_window",
    "truncation",
    "truncation_tokens",
    "selective_tool_calls",
    "summarization",
    "context_window",
]
"""Strategies that keep requests short, so that what grows is not the request itself."""


class _CountingHistoryProvider(InMemoryHistoryProvider):
    """Counts the messages that it gives out."""

    def __init__(self) -> None:
        super().__init__()
        self.given_out = 0

    async def get_messages(self, *args: Any, **kwargs: Any) -> list[Message]:
        messages = await super().get_messages(*args, **kwargs)
        self.given_out += len(messages)
        return messages


def _loop(streaming: bool, per_call: bool, name: str, loaded: dict[int, int]) -> Any:
    async def work(calls: int) -> Any:
        client = ScriptedChatClient(keep_requests=False)
        client.script(*(call(f"1.{index}") for index in range(calls)), say("a1"))
        provider = _CountingHistoryProvider()
        agent = Talk(Store("memory", provider), streaming, per_call).make_agent(client, _loop_strategy(name))

        async def run() -> None:
            await ask(agent, user("u1"), session=AgentSession(), streaming=streaming)
            assert len(client.request_sizes) == calls + 1
            assert max(client.request_sizes) <= 16
            loaded[calls] = provider.given_out

        return run

    return work


@pytest.mark.contract("C18")
@pytest.mark.timeout(600)
@both_modes
@pytest.mark.parametrize("name", _LOOP_STRATEGIES)
async def test_a_tool_loop_is_linear_in_its_iterations(
    streaming: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = _loop(streaming, False, name, {})

    await _grows(monkeypatch, work, small=FEW, large=MANY, exponent=1.3, start=8_000)


@pytest.mark.contract("C18")
@pytest.mark.timeout(600)
@both_modes
@pytest.mark.parametrize("name", _LOOP_STRATEGIES)
async def test_a_tool_loop_under_per_service_call_persistence_is_linear_in_what_it_loads(
    streaming: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call loads the history from its store, which costs what it costs: nothing may be added to its growth."""
    loaded: dict[int, int] = {}
    work = _loop(streaming, True, name, loaded)
    visits = _Visits()
    counts: dict[int, float] = {}
    for calls in (FEW // 4, MANY // 4):
        prepared = await work(calls)
        with visits.counting(monkeypatch, limit=400 * calls * calls):
            await prepared()
        counts[calls] = visits.count / loaded[calls]

    assert counts[MANY // 4] <= counts[FEW // 4] * 2**0.3


@pytest.mark.contract("C18")
@pytest.mark.timeout(600)
@both_modes
@both_persistences
@pytest.mark.parametrize("name", ["truncation_tokens", "token_budget", "context_window"])
async def test_what_a_tool_loop_tokenizes_is_linear_in_its_iterations(
    streaming: bool, per_call: bool, name: str
) -> None:
    """Under per-service-call persistence: linear in the messages that its calls load."""
    counted: list[float] = []
    for calls in (30, 60):
        tokenizer = RecordingTokenizer()
        strategy: Any = {
            "truncation_tokens": TruncationStrategy(max_n=400, compact_to=200, tokenizer=tokenizer),
            "token_budget": TokenBudgetComposedStrategy(token_budget=400, tokenizer=tokenizer, strategies=[]),
            "context_window": ContextWindowCompactionStrategy(
                max_context_window_tokens=500, max_output_tokens=50, tokenizer=tokenizer, keep_last_tool_call_groups=1
            ),
        }[name]
        client = ScriptedChatClient([*(call(f"1.{index}") for index in range(calls)), say("a1")], keep_requests=False)
        provider = _CountingHistoryProvider()
        talk = Talk(Store("memory", provider), streaming, per_call)
        await ask(talk.make_agent(client, strategy), user("u1"), session=talk.session, streaming=streaming)
        counted.append(tokenizer.calls / (provider.given_out if per_call else calls))

    assert 0 < counted[1] <= counted[0] * 2**0.3


# endregion
