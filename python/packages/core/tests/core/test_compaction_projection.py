# Copyright (c) Microsoft. All rights reserved.

"""What a list of messages projects to: covered messages are left out because of a summary, never because of a flag."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from agent_framework import (
    EXCLUDED_KEY,
    SUMMARIZED_BY_SUMMARY_ID_KEY,
    AgentSession,
    CompactionProvider,
    Message,
    ToolResultCompactionStrategy,
    annotate_message_groups,
    apply_compaction,
    chat_middleware,
    included_messages,
)

from ._compaction_helpers import (
    STRATEGY_NAMES,
    SUMMARIZING,
    ScriptedChatClient,
    Summarizer,
    Talk,
    all_stores,
    annotation,
    assert_all_told,
    assert_no_dangling_pointer,
    both_modes,
    both_persistences,
    call,
    cover,
    every_axis,
    is_excluded,
    known,
    make_store,
    make_strategy,
    markers,
    new_name,
    project,
    result,
    say,
    summarized_by,
    summary_message,
    summary_of,
    text_of,
    user,
)


def _ids(messages: list[Message]) -> list[str | None]:
    return [message.message_id for message in messages]


def _conversation() -> list[Message]:
    return [user("u1", message_id="m1"), say("a1", message_id="m2"), user("u2", message_id="m3")]


# region One list


@pytest.mark.contract("C1")
def test_the_projection_is_a_public_function() -> None:
    projecting = new_name("project_included_messages")

    assert _ids(projecting([*_conversation(), summary_message("s", ["m1", "m2"])])) == ["s", "m3"]


@pytest.mark.contract("C1")
def test_a_covered_message_is_left_out_without_any_flag() -> None:
    messages = [*_conversation(), summary_message("s", ["m1", "m2"])]

    assert _ids(project(messages)) == ["s", "m3"]


@pytest.mark.contract("C1")
def test_a_summary_stands_where_the_first_message_it_covers_stood() -> None:
    messages = [
        Message("system", ["rules"], message_id="m0"),
        *_conversation(),
        say("a2", message_id="m4"),
        summary_message("s", ["m3", "m2"]),
    ]

    assert _ids(project(messages)) == ["m0", "m1", "s", "m4"]


@pytest.mark.contract("C1")
def test_an_exclusion_does_not_outlive_its_summary() -> None:
    messages = _conversation()
    cover(messages[0], "gone")
    cover(messages[1], "gone")

    assert _ids(project(messages)) == ["m1", "m2", "m3"]


@pytest.mark.contract("C1")
def test_an_exclusion_does_not_survive_under_an_unrelated_summary_of_the_same_name() -> None:
    messages = _conversation()
    cover(messages[0], "s")
    cover(messages[1], "s")

    assert _ids(project([*messages, summary_message("s", ["m2"])])) == ["m1", "s", "m3"]


@pytest.mark.contract("C1")
def test_an_exclusion_without_a_summary_stands() -> None:
    messages = _conversation()
    messages[0].additional_properties[EXCLUDED_KEY] = True

    assert _ids(project(messages)) == ["m2", "m3"]


@pytest.mark.contract("C1")
@pytest.mark.parametrize("round_trip", ["copy", "dictionary"])
def test_a_projection_survives_a_round_trip(round_trip: str) -> None:
    messages = [*_conversation(), summary_message("s", ["m1", "m2"])]
    if round_trip == "copy":
        again = copy.deepcopy(messages)
    else:
        again = [Message.from_dict(json.loads(json.dumps(message.to_dict()))) for message in messages]

    assert _ids(project(again)) == ["s", "m3"]


@pytest.mark.contract("C1")
def test_a_summary_of_summaries_stands_for_all_they_cover() -> None:
    messages = [
        *_conversation(),
        summary_message("s1", ["m1"]),
        say("a2", message_id="m4"),
        summary_message("s2", ["s1", "m2"]),
    ]

    assert _ids(project(messages)) == ["s2", "m3", "m4"]


@pytest.mark.contract("C1")
def test_taking_a_summary_away_brings_back_what_it_covered() -> None:
    messages = [
        *_conversation(),
        summary_message("s1", ["m1"]),
        summary_message("s2", ["s1", "m2"]),
    ]

    assert _ids(project(messages[:-1])) == ["s1", "m2", "m3"]
    assert _ids(project(messages[:-2])) == ["m1", "m2", "m3"]


@pytest.mark.contract("C1")
def test_excluding_a_summary_does_not_bring_back_what_it_covers() -> None:
    """A summary is in the list: what it covers is left out, and truncating the summary makes the prompt shorter."""
    summary = summary_message("s", ["m1", "m2"])
    summary.additional_properties[EXCLUDED_KEY] = True

    assert _ids(project([*_conversation(), summary])) == ["m3"]


@pytest.mark.contract("C1")
def test_an_empty_or_malformed_summary_hides_nothing() -> None:
    broken = summary_message("s1", [])
    also_broken = summary_message("s2", [])
    also_broken.additional_properties["_group"]["_summary_of_message_ids"] = "m1"
    messages = [*_conversation(), broken, also_broken]

    assert {"u1", "a1", "u2"} <= set(markers(project(messages)))


@pytest.mark.contract("C1")
def test_summaries_that_cover_each_other_lose_nothing() -> None:
    messages = [
        *_conversation(),
        summary_message("s1", ["m1", "s2"], text="first"),
        summary_message("s2", ["m2", "s1"], text="second"),
    ]

    projected = project(messages)

    told = {text_of(message) for message in projected}
    assert told & {"first", "second"} or {"u1", "a1"} <= set(markers(projected))
    assert "u2" in markers(projected)


@pytest.mark.contract("C1")
def test_projecting_does_not_change_the_messages() -> None:
    messages = [*_conversation(), summary_message("s", ["m1", "m2"])]
    before = [message.to_dict() for message in messages]

    project(messages)

    assert [message.to_dict() for message in messages] == before


@pytest.mark.contract("C1")
def test_projecting_twice_changes_nothing() -> None:
    messages = [*_conversation(), say("a2", message_id="m4"), summary_message("s", ["m2", "m3"])]

    once = project(messages)

    assert _ids(project(once)) == _ids(once)


@pytest.mark.contract("C1")
@pytest.mark.parametrize("name", sorted(SUMMARIZING))
async def test_a_strategy_writes_the_exclusion_together_with_the_summary(name: str) -> None:
    messages = [
        user("u1", message_id="m1"),
        call("1.0", message_id="m2"),
        result("1.0", message_id="m3"),
        say("a1", message_id="m4"),
        user("u2", message_id="m5"),
    ]
    annotate_message_groups(messages)

    assert await make_strategy(name, Summarizer())(messages)

    summaries = {message.message_id: message for message in messages if summary_of(message)}
    assert summaries
    for message in messages:
        covering = [
            summary_id for summary_id, summary in summaries.items() if message.message_id in summary_of(summary)
        ]
        assert is_excluded(message) == bool(covering)
        assert (summarized_by(message) in covering) if covering else (summarized_by(message) is None)
    assert project(messages) == included_messages(messages)


# endregion

# region Loading


@pytest.mark.contract("C16")
@both_modes
@both_persistences
@pytest.mark.parametrize("name", STRATEGY_NAMES)
@pytest.mark.parametrize("compaction_first", [False, True], ids=["history_first", "compaction_first"])
async def test_compaction_alone_shrinks_the_next_prompt(
    streaming: bool, per_call: bool, name: str, compaction_first: bool, tmp_path: Path
) -> None:
    talk = Talk(make_store("memory", tmp_path), streaming, per_call, compaction_first=compaction_first)
    talk.after = make_strategy(name, talk.summarizer)
    talk.agent = talk.make_agent(talk.client)

    await talk.turn(calls=4)
    await talk.turn()

    said_in_turn_one = 1 + 2 * 4 + 1
    prompt = talk.requests_of_turn(2)[0]
    assert len(prompt) < said_in_turn_one
    assert "u2" in markers(prompt)
    assert_all_told(talk, await talk.load())


@pytest.mark.contract("C16")
@both_modes
@both_persistences
async def test_the_history_that_is_added_for_a_session_is_compacted_too(streaming: bool, per_call: bool) -> None:
    from agent_framework import Agent

    from ._compaction_helpers import ScriptedChatClient, ask, work_tool

    client = ScriptedChatClient([call("1.0"), call("1.1"), call("1.2"), say("a1"), say("a2")])
    agent = Agent(
        client=client,
        tools=[work_tool()],
        context_providers=[CompactionProvider(after_strategy=make_strategy("tool_results"))],
        require_per_service_call_history_persistence=per_call,
    )
    session = AgentSession()

    await ask(agent, user("u1"), session=session, streaming=streaming)
    await ask(agent, user("u2"), session=session, streaming=streaming)

    prompt = client.requests[-1]
    assert not any(content.type == "function_call" for message in prompt for content in message.contents)
    assert {"u1", "r1.0", "r1.1", "r1.2", "a1", "u2"} <= set(markers(prompt))


@pytest.mark.contract("C16")
@every_axis
async def test_prompts_stay_small_over_many_turns(
    streaming: bool, store_kind: str, per_call: bool, tmp_path: Path
) -> None:
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call)
    talk.after = make_strategy("summarization", talk.summarizer, tight=False)
    talk.agent = talk.make_agent(talk.client)

    for _ in range(12):
        await talk.turn(calls=2)

    first_prompts = [talk.requests_of_turn(number)[0] for number in range(1, 13)]
    assert max(len(prompt) for prompt in first_prompts) <= 8
    for number, prompt in enumerate(first_prompts, start=1):
        said_before = [m for m in talk.said if int(m[1:].split(".")[0]) < number]
        assert set(said_before) <= known(prompt, talk.summarizer)
    assert_all_told(talk, await talk.load())


@pytest.mark.contract("C16")
@both_modes
async def test_a_harness_agent_prompts_with_what_is_included(streaming: bool, tmp_path: Path) -> None:
    """The harness, turn 5: 45 messages where 34 were included."""
    from agent_framework import create_harness_agent

    from ._compaction_helpers import ScriptedChatClient, ask, work_tool

    client = ScriptedChatClient()
    after = make_strategy("tool_results", tight=False)
    agent = create_harness_agent(
        client,
        tools=[work_tool()],
        after_compaction_strategy=after,
        disable_todo=True,
        disable_mode=True,
        disable_file_memory=True,
        disable_web_search=True,
    )
    session = AgentSession()
    for number in range(1, 6):
        client.script(*(call(f"{number}.{index}") for index in range(4)), say(f"a{number}"))
        first = len(client.requests)
        await ask(agent, user(f"u{number}"), session=session, streaming=streaming)

    prompt = client.requests[first]
    calls = [c for message in prompt for c in message.contents if c.type == "function_call"]
    assert len(calls) == 2, "the after strategy keeps the two newest tool call groups of the stored history"
    results = {f"r{number}.{index}" for number in range(1, 5) for index in range(4)}
    assert results <= set(markers(prompt))


@pytest.mark.contract("C16")
@both_modes
@both_persistences
@all_stores
async def test_a_summary_that_somebody_appended_is_loaded_in_place(
    streaming: bool, per_call: bool, store_kind: str, tmp_path: Path
) -> None:
    """A summary can be appended to any store: two writers, or a program that compacts at night."""
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call, attach_compaction=True)
    await talk.turn(calls=1)
    await talk.turn()
    covered = [message.message_id or "" for message in talk.stored()[:4]]
    state = talk.session.state.setdefault(talk.store.source_id, {})
    await talk.store.provider.save_messages(
        talk.session.session_id, [summary_message("night", covered, text="the first turn")], state=state
    )

    await talk.turn()

    prompt = talk.requests_of_turn(3)[0] if talk.requests_of_turn(3) else talk.client.requests[-1]
    assert [text_of(message) for message in prompt][0] == "the first turn"
    assert markers(prompt) == ["u2", "a2", "u3"]


# endregion

# region Annotations stay where they belong


@pytest.mark.contract("C7")
@every_axis
@pytest.mark.parametrize("name", sorted(SUMMARIZING))
async def test_no_stored_annotation_points_to_a_summary_that_is_not_there(
    streaming: bool, store_kind: str, per_call: bool, name: str, tmp_path: Path
) -> None:
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call)
    talk.in_run = make_strategy(name, talk.summarizer)
    talk.agent = talk.make_agent(talk.client, talk.in_run)

    for _ in range(3):
        await talk.turn(calls=3)

    assert_no_dangling_pointer(talk.stored())


def _shallow_copies(new_ids: bool) -> Any:
    """Return a middleware that sends copies, as ``copy.copy`` makes them, and claims nothing."""

    @chat_middleware
    async def process(context: Any, call_next: Any) -> None:
        copies: list[Message] = []
        for message in context.messages:
            duplicate = copy.copy(message)
            duplicate.additional_properties = dict(message.additional_properties)
            if new_ids and message.message_id:
                duplicate.message_id = f"{message.message_id}-fitted"
            copies.append(duplicate)
        context.messages = copies
        await call_next()

    return process


@pytest.mark.contract("C7")
@every_axis
@pytest.mark.parametrize("new_ids", [False, True], ids=["same_ids", "new_ids"])
@pytest.mark.parametrize("name", sorted(SUMMARIZING))
async def test_markers_do_not_leak_through_shallow_copies(
    streaming: bool, store_kind: str, per_call: bool, new_ids: bool, name: str, tmp_path: Path
) -> None:
    """A copy shares its annotation dictionary: 11 of 24 stored messages named a summary that was not there."""
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call, middleware=[_shallow_copies(new_ids)])
    await talk.turn(calls=2)
    talk.agent = talk.make_agent(talk.client, make_strategy(name, talk.summarizer))

    await talk.turn(calls=5)
    await talk.turn(calls=5)

    assert_no_dangling_pointer(talk.stored())


@pytest.mark.contract("C7")
@both_modes
async def test_a_request_that_fails_leaves_no_marker_behind(streaming: bool, tmp_path: Path) -> None:
    talk = Talk(make_store("memory", tmp_path), streaming)
    talk.in_run = make_strategy("summarization", talk.summarizer)
    talk.agent = talk.make_agent(talk.client, talk.in_run)
    await talk.turn(calls=2)

    await talk.turn(ends_with=RuntimeError("the model is away"))

    assert_no_dangling_pointer(talk.stored())


@pytest.mark.contract("C7")
@both_modes
@both_persistences
@pytest.mark.parametrize("place", ["in_run", "before"])
@pytest.mark.parametrize("name", [name for name in STRATEGY_NAMES if name not in SUMMARIZING])
async def test_a_strategy_does_not_write_into_messages_that_are_stored(
    streaming: bool, per_call: bool, place: str, name: str, tmp_path: Path
) -> None:
    """A strategy works on what it may change: what the session holds, and what was read from it, stays as it was."""
    talk = Talk(make_store("memory", tmp_path), streaming, per_call)
    setattr(talk, place, make_strategy(name))
    talk.agent = talk.make_agent(talk.client, talk.in_run)
    await talk.turn(calls=3)
    handed_out = talk.stored()
    before = copy.deepcopy([message.to_dict() for message in handed_out])

    await talk.turn(calls=2)

    assert [message.to_dict() for message in handed_out] == before


@pytest.mark.contract("C7")
def test_annotating_keeps_the_annotation_of_another_copy_as_it_was() -> None:
    original = user("u1", message_id="m1")
    annotate_message_groups([original])
    before = copy.deepcopy(annotation(original))
    shallow = copy.copy(original)
    shallow.additional_properties = dict(original.additional_properties)

    messages = [shallow, say("a1", message_id="m2")]
    cover(shallow, "s")
    annotate_message_groups(messages, force_reannotate=True)

    assert annotation(original) == before
    assert SUMMARIZED_BY_SUMMARY_ID_KEY not in annotation(original)


# endregion


# region Requests, and summaries of two writers


@pytest.mark.contract("C1")
@both_modes
async def test_what_a_summary_covers_is_not_sent_next_to_it(streaming: bool) -> None:
    """Also where no strategy is configured, as when a list with a summary in it is sent again."""
    client = ScriptedChatClient([say("a2")])
    messages = [summary_message("s", ["m1", "m2"]), user("u1", message_id="m1"), say("a1", message_id="m2"), user("u2")]

    if streaming:
        stream = client.get_response(messages, stream=True)
        async for _ in stream:
            pass
    else:
        await client.get_response(messages)

    (request,) = client.requests
    assert [bool(summary_of(message)) for message in request] == [True, False]
    assert markers(request) == ["u2"]


@pytest.mark.contract("C1")
def test_two_summaries_of_the_same_messages_stand_where_the_first_of_them_stood() -> None:
    """Two processes compacted one history at once."""
    messages = [user("u1", message_id="m1"), say("a1", message_id="m2"), user("u2", message_id="m3"), say("a2")]
    summaries = [summary_message("s1", ["m1", "m2"], text="first"), summary_message("s2", ["m1", "m2"], text="second")]

    projected = project([*messages, *summaries])

    assert [text_of(message) for message in projected][:2] == ["first", "second"]
    assert markers(projected) == ["u2", "a2"]
    assert [text_of(message) for message in project(projected)] == [text_of(message) for message in projected]


@pytest.mark.contract("C1")
async def test_a_summary_does_not_cover_what_a_strategy_dropped_before() -> None:
    """A tool-call group that is excluded in part: its summary tells, and covers, the other part."""
    messages = [call("1.0", message_id="m1"), call("2.0", message_id="m2"), user("u3", message_id="m3")]
    messages += [result("1.0", message_id="m4"), result("2.0", message_id="m5")]
    for message in (messages[0], messages[3]):
        message.additional_properties[EXCLUDED_KEY] = True

    await apply_compaction(messages, strategy=ToolResultCompactionStrategy(keep_last_tool_call_groups=0))

    (summary,) = [message for message in messages if summary_of(message)]
    assert summary_of(summary) == ["m2", "m5"]
    assert "r1.0" not in markers([summary])


# endregion
