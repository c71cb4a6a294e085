# Copyright (c) Microsoft. All rights reserved.

"""``CompactionProvider`` over every store: appends summaries everywhere, rewrites only to drop or to record."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from agent_framework import (
    Agent,
    AgentSession,
    CompactionProvider,
    Content,
    InMemoryHistoryProvider,
    Message,
)

from ._compaction_helpers import (
    STRATEGY_NAMES,
    SUMMARIZING,
    ScriptedChatClient,
    SerialisingHistoryProvider,
    Store,
    Talk,
    all_stores,
    ask,
    assert_all_told,
    assert_no_dangling_pointer,
    assert_paired,
    assert_stored_as_said,
    both_modes,
    both_persistences,
    call,
    every_axis,
    is_excluded,
    known,
    make_store,
    make_strategy,
    markers,
    new_name,
    say,
    summary_message,
    summary_of,
    text_of,
    user,
    without_summaries,
    work_tool,
)

NOT_SUMMARIZING = ["sliding_window", "truncation", "truncation_tokens", "selective_tool_calls"]
"""Strategies that exclude and leave no summary."""


def _talk(
    store_kind: str,
    path: Path,
    streaming: bool,
    per_call: bool,
    name: str | None,
    *,
    tight: bool = True,
    **provider_options: Any,
) -> Talk:
    talk = Talk(make_store(store_kind, path), streaming, per_call, provider_options=provider_options)
    talk.after = None if name is None else make_strategy(name, talk.summarizer, tight=tight)
    return talk


def _start(talk: Talk) -> Talk:
    if "retain_excluded" in talk.provider_options:
        _needs_retain_excluded()
    talk.agent = talk.make_agent(talk.client, talk.in_run)
    return talk


def _needs_retain_excluded() -> None:
    try:
        CompactionProvider(retain_excluded=True)  # type: ignore[call-arg]
    except TypeError:
        pytest.fail("CompactionProvider takes no 'retain_excluded'")


# region Every store


@pytest.mark.contract("C15")
@both_modes
@both_persistences
@all_stores
@pytest.mark.parametrize("name", sorted(SUMMARIZING))
async def test_new_summaries_are_appended_to_any_store(
    streaming: bool, per_call: bool, store_kind: str, name: str, tmp_path: Path
) -> None:
    """With a file, or any external store, the strategy was called 0 times, silently."""
    talk = _start(_talk(store_kind, tmp_path, streaming, per_call, name))

    def as_stored() -> list[Any]:
        if store_kind == "memory":
            return [(message.message_id, message.role, text_of(message)) for message in talk.stored()]
        return [message.to_dict() for message in talk.stored()]

    await talk.turn(calls=3)
    after_one = as_stored()
    await talk.turn(calls=1)

    stored = talk.stored()
    assert any(summary_of(message) for message in stored)
    assert as_stored()[: len(after_one)] == after_one, "append, do not rewrite"
    assert_all_told(talk, await talk.load())


@pytest.mark.contract("C15")
@both_modes
@both_persistences
@all_stores
@pytest.mark.parametrize("name", sorted(SUMMARIZING))
@pytest.mark.parametrize("compaction_first", [False, True], ids=["history_first", "compaction_first"])
async def test_the_next_prompt_is_small_with_any_store(
    streaming: bool, per_call: bool, store_kind: str, name: str, compaction_first: bool, tmp_path: Path
) -> None:
    talk = _talk(store_kind, tmp_path, streaming, per_call, name)
    talk.compaction_first = compaction_first
    _start(talk)

    await talk.turn(calls=6)
    await talk.turn()

    prompt = talk.client.requests[-1]
    assert not any(content.type == "function_call" for message in prompt for content in message.contents)
    assert {m for m in talk.said if m[1] == "1"} <= known(prompt, talk.summarizer)
    assert_paired(talk.client.requests)


@pytest.mark.contract("C15")
@both_modes
@both_persistences
@all_stores
@pytest.mark.parametrize("compaction_first", [False, True], ids=["history_first", "compaction_first"])
async def test_the_strategy_runs_after_the_turn_has_been_saved(
    streaming: bool, per_call: bool, store_kind: str, compaction_first: bool, tmp_path: Path
) -> None:
    seen: list[list[str]] = []

    async def record(messages: list[Message]) -> bool:
        seen.append(markers(messages))
        return False

    talk = _talk(store_kind, tmp_path, streaming, per_call, None)
    talk.after = record
    talk.compaction_first = compaction_first
    _start(talk)

    await talk.turn(calls=1)
    await talk.turn()

    assert seen == [["u1", "c1.0", "r1.0", "a1"], ["u1", "c1.0", "r1.0", "a1", "u2", "a2"]]


@pytest.mark.contract("C15")
@both_modes
@both_persistences
async def test_a_provider_that_appends_without_looking_is_given_only_what_is_new(
    streaming: bool, per_call: bool, tmp_path: Path
) -> None:
    talk = _start(_talk("serialising", tmp_path, streaming, per_call, "tool_results"))

    for calls in (2, 1, 0, 2):
        await talk.turn(calls=calls)

    texts = [text_of(message) for message in talk.stored()]
    assert len(set(texts)) == len(texts)
    assert_stored_as_said(talk.stored(), talk.said)


@pytest.mark.contract("C15")
@both_modes
@both_persistences
@pytest.mark.parametrize("store_kind", ["memory", "file", "msgpack"])
@pytest.mark.parametrize("name", NOT_SUMMARIZING)
async def test_an_exclusion_without_a_summary_is_recorded_where_the_store_can_be_rewritten(
    streaming: bool,
    per_call: bool,
    store_kind: str,
    name: str,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    talk = _start(_talk(store_kind, tmp_path, streaming, per_call, name))

    with caplog.at_level(logging.WARNING):
        await talk.turn(calls=6)
        await talk.turn()

    assert any(is_excluded(message) for message in talk.stored())
    assert len(talk.client.requests[-1]) < 1 + 2 * 6 + 1
    assert_stored_as_said(talk.stored(), talk.said)
    assert_all_told(talk, await talk.load())
    assert [r.getMessage() for r in caplog.records if "budget" not in r.getMessage()] == []


@pytest.mark.contract("C15")
@both_modes
@both_persistences
@pytest.mark.parametrize("name", NOT_SUMMARIZING)
async def test_an_exclusion_that_cannot_be_recorded_gives_one_warning(
    streaming: bool, per_call: bool, name: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    talk = _start(_talk("serialising", tmp_path, streaming, per_call, name))

    with caplog.at_level(logging.WARNING):
        await talk.turn(calls=6)

    (warning,) = [r.getMessage() for r in caplog.records if "SerialisingHistoryProvider" in r.getMessage()]
    assert type(talk.after).__name__ in warning
    assert "replace_messages" in warning
    assert_stored_as_said(talk.stored(), talk.said)
    assert set(talk.said) <= known(await talk.load())


@pytest.mark.contract("C15")
@both_modes
@both_persistences
async def test_a_summarizing_strategy_gives_no_warning_on_an_append_only_store(
    streaming: bool, per_call: bool, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    talk = _start(_talk("serialising", tmp_path, streaming, per_call, "tool_results"))

    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await talk.turn(calls=3)

    assert any(summary_of(message) for message in talk.stored())
    assert [record.getMessage() for record in caplog.records] == []


class _RefusingHistoryProvider(InMemoryHistoryProvider):
    """A store in which somebody else has always been first."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.refusals = 0

    async def replace_messages(self, *args: Any, **kwargs: Any) -> bool:
        self.refusals += 1
        return False


@pytest.mark.contract("C15")
@both_modes
@both_persistences
@pytest.mark.parametrize("name", sorted(SUMMARIZING))
async def test_a_refused_rewrite_loses_nothing_and_the_next_prompt_is_small(
    streaming: bool, per_call: bool, name: str, tmp_path: Path
) -> None:
    provider = _RefusingHistoryProvider()
    talk = Talk(Store("memory", provider), streaming, per_call, provider_options={"retain_excluded": False})
    talk.after = make_strategy(name, talk.summarizer)
    _start(talk)

    await talk.turn(calls=6)
    await talk.turn()

    assert provider.refusals > 0
    assert len(talk.client.requests[-1]) <= 1 + 6 + 1 + 1
    assert not any(c.type == "function_call" for m in talk.client.requests[-1] for c in m.contents)
    assert_all_told(talk, await talk.load())
    assert_no_dangling_pointer(talk.stored())


@pytest.mark.contract("C15")
@both_modes
@both_persistences
@pytest.mark.parametrize("name", NOT_SUMMARIZING)
async def test_a_refused_exclusion_loses_nothing(streaming: bool, per_call: bool, name: str, tmp_path: Path) -> None:
    provider = _RefusingHistoryProvider()
    talk = Talk(Store("memory", provider), streaming, per_call)
    talk.after = make_strategy(name, talk.summarizer)
    _start(talk)

    await talk.turn(calls=6)
    await talk.turn()

    assert provider.refusals > 0
    assert_all_told(talk, await talk.load())


# endregion

# region A history source that is not there


def _agent(client: ScriptedChatClient, providers: list[Any], per_call: bool = False) -> Agent[Any]:
    return Agent(
        client=client,
        tools=[work_tool()],
        context_providers=providers,
        require_per_service_call_history_persistence=per_call,
    )


@pytest.mark.contract("C15")
@both_modes
@both_persistences
@pytest.mark.parametrize("others", ["none", "another"])
async def test_a_history_source_that_names_no_provider_is_an_error_at_the_first_run(
    streaming: bool, per_call: bool, others: str
) -> None:
    client = ScriptedChatClient([say("a1")])
    compaction = CompactionProvider(after_strategy=make_strategy("tool_results"), history_source_id="nowhere")
    providers: list[Any] = [compaction] if others == "none" else [SerialisingHistoryProvider(), compaction]

    with pytest.raises(Exception, match="nowhere"):
        await ask(_agent(client, providers, per_call), user("u1"), session=AgentSession(), streaming=streaming)

    assert client.requests == [], "an error before anything is asked"


@pytest.mark.contract("C15")
@both_modes
async def test_a_history_source_that_names_no_provider_is_no_error_without_a_session(streaming: bool) -> None:
    client = ScriptedChatClient([say("a1")])
    compaction = CompactionProvider(after_strategy=make_strategy("tool_results"), history_source_id="nowhere")

    response = await ask(_agent(client, [compaction]), user("u1"), streaming=streaming)

    assert markers(response.messages) == ["a1"]


@pytest.mark.contract("C15")
@both_modes
@pytest.mark.parametrize("kept_by", ["store_option", "client_default", "conversation"])
async def test_a_history_source_that_names_no_provider_is_no_error_when_the_service_keeps_the_history(
    streaming: bool, kept_by: str
) -> None:
    client = ScriptedChatClient([say("a1")])
    session = AgentSession()
    options: dict[str, Any] = {}
    if kept_by == "store_option":
        options["store"] = True
    elif kept_by == "client_default":
        client.STORES_BY_DEFAULT = True  # type: ignore[misc]
    else:
        session = AgentSession(service_session_id="conversation-1")
    compaction = CompactionProvider(after_strategy=make_strategy("tool_results"), history_source_id="nowhere")

    response = await ask(
        _agent(client, [compaction]), user("u1"), session=session, streaming=streaming, options=options
    )

    assert markers(response.messages) == ["a1"]


@pytest.mark.contract("C15")
@both_modes
async def test_the_default_history_source_is_the_provider_that_is_added_for_a_session(streaming: bool) -> None:
    client = ScriptedChatClient([call("1.0"), say("a1"), say("a2")])
    agent = _agent(client, [CompactionProvider(after_strategy=make_strategy("tool_results"))])
    session = AgentSession()

    await ask(agent, user("u1"), session=session, streaming=streaming)
    await ask(agent, user("u2"), session=session, streaming=streaming)

    assert any(summary_of(message) for message in session.state["in_memory"]["messages"])


# endregion

# region What a rewritten store keeps


@pytest.mark.contract("C17")
@every_axis
@pytest.mark.parametrize("name", STRATEGY_NAMES)
async def test_excluded_messages_are_kept_by_default(
    streaming: bool, store_kind: str, per_call: bool, name: str, tmp_path: Path
) -> None:
    talk = _start(_talk(store_kind, tmp_path, streaming, per_call, name))
    explicit = _start(_talk(store_kind, tmp_path, streaming, per_call, name, retain_excluded=True))

    for calls in (3, 0, 2):
        await talk.turn(calls=calls)
        await explicit.turn(calls=calls)

    for one in (talk, explicit):
        assert_stored_as_said(one.stored(), one.said)
    assert [text_of(m) for m in talk.stored()] == [text_of(m) for m in explicit.stored()]


@pytest.mark.contract("C17")
@every_axis
@pytest.mark.parametrize("name", STRATEGY_NAMES)
async def test_excluded_messages_are_dropped_on_request(
    streaming: bool, store_kind: str, per_call: bool, name: str, tmp_path: Path
) -> None:
    kept = _start(_talk(store_kind, tmp_path / "kept", streaming, per_call, name))
    dropped = _start(_talk(store_kind, tmp_path / "dropped", streaming, per_call, name, retain_excluded=False))

    for calls in (3, 0, 2):
        await kept.turn(calls=calls)
        await dropped.turn(calls=calls)

    assert len(dropped.stored()) < len(kept.stored())
    assert [text_of(m) for m in dropped.stored()] == [text_of(m) for m in await kept.load()]
    assert [[text_of(m) for m in r] for r in dropped.client.requests] == [
        [text_of(m) for m in r] for r in kept.client.requests
    ]
    assert_no_dangling_pointer(dropped.stored())
    assert not any(is_excluded(message) for message in dropped.stored())


@pytest.mark.contract("C17")
@every_axis
@pytest.mark.parametrize("name", ["summarization", "sliding_window", "truncation", "context_window"])
async def test_a_store_that_drops_is_bounded(
    streaming: bool, store_kind: str, per_call: bool, name: str, tmp_path: Path
) -> None:
    """Fifty turns of an agent that uses tools."""
    talk = _talk(store_kind, tmp_path, streaming, per_call, name, tight=False, retain_excluded=False)
    talk.result_size = 300
    _start(talk)
    counts: list[int] = []
    sizes: list[int] = []

    for _ in range(50):
        await talk.turn(calls=3)
        stored = talk.stored()
        counts.append(len(stored))
        if store_kind == "file":
            sizes.append(talk.store.file(talk.session).stat().st_size)
        else:
            sizes.append(len(json.dumps(talk.session.to_dict())))

    assert max(counts) <= 24
    assert max(sizes[25:]) <= 1.25 * max(sizes[:25])


@pytest.mark.contract("C17")
@both_modes
@both_persistences
async def test_an_append_only_store_keeps_everything_and_says_so_once(
    streaming: bool, per_call: bool, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    talk = _start(_talk("serialising", tmp_path, streaming, per_call, "tool_results", retain_excluded=False))

    with caplog.at_level(logging.WARNING):
        await talk.turn(calls=4)
    await talk.turn()

    (warning,) = [record.getMessage() for record in caplog.records]
    assert "SerialisingHistoryProvider" in warning
    assert "replace_messages" in warning
    assert_stored_as_said(talk.stored(), talk.said)
    assert not any(c.type == "function_call" for m in talk.client.requests[-1] for c in m.contents)


@pytest.mark.contract("C17")
@both_modes
@both_persistences
@pytest.mark.parametrize("store_kind", ["memory", "file"])
async def test_identical_turns_are_stored_each_time_in_a_store_that_drops(
    streaming: bool, per_call: bool, store_kind: str, tmp_path: Path
) -> None:
    talk = _talk(store_kind, tmp_path, streaming, per_call, "sliding_window", tight=False, retain_excluded=False)
    _start(talk)

    for _ in range(6):
        talk.client.script(Message("assistant", ["ok"]))
        await ask(talk.agent, "next", session=talk.session, streaming=streaming)
        assert [text_of(m) for m in without_summaries(talk.stored())][-2:] == ["next", "ok"]

    assert len(talk.stored()) == 3


@pytest.mark.contract("C17")
@both_modes
@both_persistences
@pytest.mark.parametrize("store_kind", ["memory", "file"])
async def test_what_a_turn_appends_while_a_strategy_runs_is_not_dropped(
    streaming: bool, per_call: bool, store_kind: str, tmp_path: Path
) -> None:
    """The strategy takes its time, and another writer appends meanwhile."""
    talk = _talk(store_kind, tmp_path, streaming, per_call, None, retain_excluded=False)
    inner = make_strategy("summarization", talk.summarizer)

    async def slow(messages: list[Message]) -> bool:
        state = talk.session.state.setdefault(talk.store.source_id, {})
        await talk.store.provider.save_messages(
            talk.session.session_id, [user("meanwhile", message_id="meanwhile")], state=state
        )
        return await inner(messages)

    talk.after = slow
    _start(talk)

    await talk.turn(calls=2)

    assert "meanwhile" in markers(talk.stored())
    loaded = await talk.load()
    assert "meanwhile" in markers(loaded)
    assert set(talk.said) <= known(loaded, talk.summarizer)


# endregion


class _LateHistoryProvider(InMemoryHistoryProvider):
    """A store in which somebody else is first the first time."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.refusals = 0

    async def replace_messages(self, session_id: Any, replaced: Any, replacement: Any, *, state: Any = None) -> bool:
        if self.refusals == 0:
            self.refusals += 1
            await self.save_messages(session_id, [Message("user", ["[[other]] writer"])], state=state)
        return await super().replace_messages(session_id, replaced, replacement, state=state)


@pytest.mark.contract("C15")
@both_modes
@both_persistences
@pytest.mark.parametrize("name", NOT_SUMMARIZING)
async def test_an_exclusion_is_recorded_although_somebody_else_wrote_meanwhile(
    streaming: bool, per_call: bool, name: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    provider = _LateHistoryProvider()
    talk = Talk(Store("memory", provider), streaming, per_call)
    talk.after = make_strategy(name, talk.summarizer)
    _start(talk)

    with caplog.at_level(logging.WARNING):
        await talk.turn(calls=6)

    assert provider.refusals == 1
    assert any(is_excluded(message) for message in talk.stored())
    assert markers(talk.stored()) == [*talk.said, "other"]
    assert [r.getMessage() for r in caplog.records if "budget" not in r.getMessage()] == []


@pytest.mark.contract("C15")
@both_modes
@both_persistences
@pytest.mark.parametrize("retain", [True, False], ids=["retain", "drop"])
async def test_a_rewrite_that_is_always_refused_gives_one_warning(
    streaming: bool, per_call: bool, retain: bool, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    talk = Talk(Store("memory", _RefusingHistoryProvider()), streaming, per_call)
    talk.provider_options = {"retain_excluded": retain}
    talk.after = make_strategy("sliding_window")
    _start(talk)

    with caplog.at_level(logging.WARNING):
        await talk.turn(calls=3)
        await talk.turn(calls=3)

    (warning,) = [record.getMessage() for record in caplog.records]
    assert "SlidingWindowStrategy" in warning
    assert "_RefusingHistoryProvider" in warning
    assert "replace_messages" in warning
    assert ("retain_excluded=True" in warning) is not retain
    assert_stored_as_said(talk.stored(), talk.said)


class _FailingHistoryProvider(InMemoryHistoryProvider):
    async def replace_messages(self, *args: Any, **kwargs: Any) -> bool:
        raise OSError("the disk is full")


@pytest.mark.contract("C15")
@both_modes
@both_persistences
@pytest.mark.parametrize("name", sorted(SUMMARIZING))
async def test_a_rewrite_that_fails_does_not_cost_the_summary(
    streaming: bool, per_call: bool, name: str, tmp_path: Path
) -> None:
    """Summaries are appended before anything is dropped."""
    talk = Talk(Store("memory", _FailingHistoryProvider()), streaming, per_call)
    talk.provider_options = {"retain_excluded": False}
    talk.after = make_strategy(name, talk.summarizer)
    _start(talk)

    with pytest.raises(OSError, match="disk"):
        await talk.turn(calls=4)

    assert any(summary_of(message) for message in talk.stored())
    talk.provider_options = {}
    assert_all_told(talk, await talk.load())


async def _shorten_results(messages: list[Message]) -> bool:
    """Somebody's own strategy: puts a shorter result in the place of the first one."""
    position = next((i for i, message in enumerate(messages) if message.role == "tool"), None)
    if position is None:
        return False
    old = messages[position]
    short = [Content.from_function_result(content.call_id or "", result="short") for content in old.contents]
    messages[position] = new_name("record_superseded")(Message("tool", short), old)
    return True


async def _remove_results(messages: list[Message]) -> bool:
    """Somebody's own strategy: takes a result out and leaves its call."""
    position = next((i for i, message in enumerate(messages) if message.role == "tool"), None)
    if position is not None:
        del messages[position]
    return position is not None


@pytest.mark.contract("C2")
@every_axis
@pytest.mark.parametrize("retain", [True, False], ids=["retain", "drop"])
@pytest.mark.parametrize("strategy", [_shorten_results, _remove_results])
async def test_a_strategy_that_replaces_or_removes_results_splits_no_pair(
    streaming: bool, store_kind: str, per_call: bool, retain: bool, strategy: Any, tmp_path: Path
) -> None:
    talk = _talk(store_kind, tmp_path, streaming, per_call, None, retain_excluded=retain)
    talk.after = strategy
    _start(talk)

    for calls in (1, 2, 0, 1):
        await talk.turn(calls=calls)

    assert_paired(talk.client.requests)
    assert_stored_as_said(talk.stored(), talk.said)


async def _summarize_all_but_the_last(messages: list[Message]) -> bool:
    """Somebody's own strategy: puts a summary in the place of the messages, which it takes out of the list."""
    *old, last = messages
    messages[:] = [summary_message(f"summary-{len(messages)}", [m.message_id or "" for m in old]), last]
    return True


@pytest.mark.contract("C15")
@both_modes
@both_persistences
async def test_a_strategy_that_removes_what_its_summary_covers_needs_no_rewrite(
    streaming: bool, per_call: bool, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    talk = _talk("serialising", tmp_path, streaming, per_call, None)
    talk.after = _summarize_all_but_the_last
    _start(talk)

    with caplog.at_level(logging.WARNING):
        await talk.turn(calls=2)
        await talk.turn()

    assert [record.getMessage() for record in caplog.records] == []
    assert len(talk.client.requests[-1]) == 3
    assert_stored_as_said(talk.stored(), talk.said)


@pytest.mark.contract("C17")
@both_modes
@both_persistences
@pytest.mark.parametrize("store_kind", ["memory", "file", "msgpack"])
async def test_a_store_that_drops_is_bounded_without_an_after_strategy(
    streaming: bool, per_call: bool, store_kind: str, tmp_path: Path
) -> None:
    """What a strategy of the run has summarized is dropped as well."""
    talk = _talk(store_kind, tmp_path, streaming, per_call, None, retain_excluded=False)
    talk.attach_compaction = True
    talk.in_run = make_strategy("summarization", talk.summarizer, tight=False)
    _start(talk)
    sizes: list[int] = []

    for _ in range(12):
        await talk.turn(calls=1)
        sizes.append(len(talk.stored()))

    assert max(sizes[6:]) <= max(sizes[:6])
