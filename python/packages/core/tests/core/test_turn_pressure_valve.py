# Copyright (c) Microsoft. All rights reserved.

"""The opt-in pressure valve for long turns, ``CompactionProvider(mid_turn_max_tokens=N)`` (T16)."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from agent_framework import (
    Agent,
    AgentContext,
    AgentLoopMiddleware,
    AgentMiddleware,
    AgentSession,
    CharacterEstimatorTokenizer,
    ChatResponse,
    CompactionProvider,
    Content,
    InMemoryHistoryProvider,
    Message,
    SessionContext,
    SlidingWindowStrategy,
    create_harness_agent,
    tool,
)
from agent_framework._compaction import annotate_token_counts, included_token_count

from ._turn_scope_helpers import (
    ScriptedChatClient,
    TurnRecorder,
    answer_to,
    both_modes,
    both_orders,
    call_tool,
    call_tools_then_answer,
    in_order,
    iterate,
    requests_of,
    run_turn,
    stored_messages,
    texts,
)

both_persistences = pytest.mark.parametrize("per_service_call", [False, True], ids=["per_run", "per_service_call"])


@tool(approval_mode="never_require")
def search(number: int) -> str:
    """Search, and find a lot: a hundred tokens or so."""
    return f"finding {number} " + "x" * 400


@tool(approval_mode="always_require")
def guarded(number: int) -> str:
    """Do something that needs an approval."""
    return f"did {number}"


class ExcludeEverything:
    """A strategy that excludes whatever it is given, and records it."""

    def __init__(self) -> None:
        self.given: list[list[str]] = []

    async def __call__(self, messages: list[Message]) -> bool:
        self.given.append(texts(messages))
        for message in messages:
            message.additional_properties["_excluded"] = True
        return bool(messages)


class CountingCompactionProvider(CompactionProvider):
    """Counts its ``after_run`` calls and what they are told of the turn."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.turn_states: list[str | None] = []

    async def after_run(
        self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        self.turn_states.append(getattr(context, "turn_state", None))
        await super().after_run(agent=agent, session=session, context=context, state=state)


class ValveOnlyCompactionProvider(CompactionProvider):
    """Leaves the boundary out, so that what the valve has left is there to be seen after the turn."""

    async def after_run(
        self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        return


def search_then_answer(call: int, messages: list[Message]) -> Content | str:
    """A tool call in every run."""
    return call_tool("search", f"call-{call}", number=call) if call % 2 else f"answer {call}"


def search_reply(call: int) -> Content | str:
    return search_then_answer(call + 1, [])


def tokens(messages: Sequence[Message]) -> int:
    """The included tokens of ``messages``, which are left as they are."""
    copied = copy.deepcopy(list(messages))
    annotate_token_counts(copied, tokenizer=CharacterEstimatorTokenizer())
    return included_token_count(copied)


def seed(session: AgentSession) -> None:
    """An earlier turn of more than five thousand tokens that was never compacted."""
    session.state["in_memory"] = {
        "messages": [
            Message(role="user", contents=["earlier task"], message_id="earlier-1"),
            Message(role="assistant", contents=["earlier answer " + "y" * 20_000], message_id="earlier-2"),
        ]
    }


def call_ids(messages: Sequence[Message], kind: str) -> list[str | None]:
    return [content.call_id for message in messages for content in message.contents if content.type == kind]


def unpaired_call_ids(messages: Sequence[Message]) -> set[str | None]:
    """The ids of the calls without a result, and of the results without a call."""
    return set(call_ids(messages, "function_call")) ^ set(call_ids(messages, "function_result"))


def excluded_texts(session: AgentSession) -> list[str]:
    return texts([message for message in stored_messages(session) if message.additional_properties.get("_excluded")])


def valve_only_agent(client: ScriptedChatClient, strategy: Any, limit: int = 10, **kwargs: Any) -> Agent:
    """Two iterations a call, and the valve after the first."""
    compaction = ValveOnlyCompactionProvider(
        after_strategy=strategy,
        mid_turn_max_tokens=limit,  # type: ignore[call-arg]
    )
    return Agent(
        client=client,
        tools=[search, guarded],
        context_providers=[InMemoryHistoryProvider(skip_excluded=True), compaction],
        middleware=kwargs.pop("middleware", [AgentLoopMiddleware(iterate(2), max_iterations=None)]),
        **kwargs,
    )


def valved_agent(
    client: ScriptedChatClient,
    strategy: Any,
    limit: int | None,
    *,
    iterations: int = 5,
    history_first: bool = True,
    per_service_call: bool = False,
    extra: Sequence[Any] = (),
) -> Agent:
    compaction = CompactionProvider(
        after_strategy=strategy,
        tokenizer=CharacterEstimatorTokenizer(),
        mid_turn_max_tokens=limit,  # type: ignore[call-arg]
    )
    return Agent(
        client=client,
        tools=[search, guarded],
        context_providers=[*in_order(history_first, InMemoryHistoryProvider(skip_excluded=True), compaction), *extra],
        middleware=[AgentLoopMiddleware(iterate(iterations), max_iterations=None)],
        require_per_service_call_history_persistence=per_service_call,
    )


# region T16: opt-in


@pytest.mark.contract("T16")
def test_the_valve_is_closed_by_default() -> None:
    parameter = inspect.signature(CompactionProvider.__init__).parameters.get("mid_turn_max_tokens")

    assert parameter is not None
    assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
    assert parameter.default is None


@pytest.mark.contract("T16")
@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_token_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="mid_turn_max_tokens"):
        CompactionProvider(mid_turn_max_tokens=limit)  # type: ignore[call-arg]


@pytest.mark.contract("T16")
@both_modes
@both_orders
async def test_without_a_limit_nothing_is_compacted_mid_turn(stream: bool, history_first: bool) -> None:
    strategy = ExcludeEverything()
    client = ScriptedChatClient(search_then_answer)
    agent = valved_agent(client, strategy, None, history_first=history_first)
    session = agent.create_session()
    seed(session)

    await run_turn(agent, "task", stream=stream, session=session)

    assert len(strategy.given) == 1
    assert call_ids(client.requests[-1].messages, "function_call") == [f"call-{call}" for call in (1, 3, 5, 7, 9)]


@pytest.mark.contract("T16")
@both_modes
async def test_below_the_limit_nothing_is_compacted_mid_turn(stream: bool) -> None:
    strategy = ExcludeEverything()
    client = ScriptedChatClient(search_then_answer)
    agent = valved_agent(client, strategy, 1_000_000)
    session = agent.create_session()
    seed(session)

    await run_turn(agent, "task", stream=stream, session=session)

    assert len(strategy.given) == 1
    assert call_ids(client.requests[-1].messages, "function_call") == [f"call-{call}" for call in (1, 3, 5, 7, 9)]


@pytest.mark.contract("T16")
@both_modes
async def test_a_plain_run_over_the_limit_is_compacted_at_its_boundary_only(stream: bool) -> None:
    """The turn is not open when its only run has ended."""
    strategy = ExcludeEverything()
    agent = valved_agent(ScriptedChatClient(search_then_answer), strategy, 10)
    agent.middleware = []
    session = agent.create_session()
    seed(session)

    await run_turn(agent, "task", stream=stream, session=session)

    assert len(strategy.given) == 1


# endregion
# region T16: what it compacts


@pytest.mark.contract("T16")
@both_modes
@both_orders
@both_persistences
async def test_what_precedes_the_turn_goes_first(stream: bool, history_first: bool, per_service_call: bool) -> None:
    """Without the earlier turn the five iterations stay below the limit."""
    client = ScriptedChatClient(search_then_answer)
    agent = valved_agent(
        client, ExcludeEverything(), 3000, history_first=history_first, per_service_call=per_service_call
    )
    session = agent.create_session()
    seed(session)

    await run_turn(agent, "task", stream=stream, session=session)

    seen = [text.split(" x")[0].split(" y")[0] for text in texts(client.requests[-1].messages)]
    assert "earlier task" in texts(client.requests[0].messages)
    assert "earlier task" not in seen
    assert "earlier answer" not in seen
    assert call_ids(client.requests[-1].messages, "function_call") == [f"call-{call}" for call in (1, 3, 5, 7, 9)]


@pytest.mark.contract("T16")
@both_modes
@both_orders
@both_persistences
async def test_if_that_is_not_enough_the_turn_itself_is_compacted(
    stream: bool, history_first: bool, per_service_call: bool
) -> None:
    client = ScriptedChatClient(search_then_answer)
    agent = valved_agent(
        client, ExcludeEverything(), 200, history_first=history_first, per_service_call=per_service_call
    )
    session = agent.create_session()
    seed(session)

    await run_turn(agent, "task", stream=stream, session=session)

    assert "earlier task" not in texts(client.requests[-1].messages)
    assert "call-1" not in call_ids(client.requests[-1].messages, "function_call")


@pytest.mark.contract("T16")
@both_modes
@both_orders
@both_persistences
async def test_the_users_input_is_never_excluded(stream: bool, history_first: bool, per_service_call: bool) -> None:
    client = ScriptedChatClient(search_then_answer)
    agent = valved_agent(
        client, ExcludeEverything(), 10, history_first=history_first, per_service_call=per_service_call
    )

    await run_turn(agent, ["task", "and more"], stream=stream, session=agent.create_session())

    assert client.calls == 10
    for request in client.requests:
        assert {"task", "and more"} <= set(texts(request.messages))


@pytest.mark.contract("T16")
@both_modes
async def test_the_users_input_is_never_excluded_as_a_middleware_rewrote_it(stream: bool) -> None:
    """What is stored of it is not what the caller gave, and it is the user's input all the same."""

    class AddContext(AgentMiddleware):
        async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
            context.messages = [Message(role="user", contents=[f"[context] {context.messages[0].text}"])]
            await call_next()

    loop = AgentLoopMiddleware(iterate(3), max_iterations=None)
    strategy = ExcludeEverything()
    agent = valve_only_agent(ScriptedChatClient(search_then_answer), strategy, middleware=[AddContext(), loop])
    session = agent.create_session()

    await run_turn(agent, "task", stream=stream, session=session)

    assert strategy.given
    assert "[context] task" not in excluded_texts(session)


@pytest.mark.contract("T4")
@pytest.mark.contract("T16")
@both_modes
async def test_the_task_is_never_excluded_after_a_pause_in_a_later_iteration(stream: bool) -> None:
    """Between the task and the pause is the nudge that started the iteration which paused."""
    strategy = ExcludeEverything()
    client = ScriptedChatClient(["answer 1", call_tool("guarded", "pending-1", number=1), "answer 3", "answer 4"])
    agent = valve_only_agent(client, strategy)
    session = agent.create_session()

    paused = await run_turn(agent, "task", stream=stream, session=session)
    strategy.given.clear()
    await run_turn(agent, answer_to(*requests_of(paused)), stream=stream, session=session)

    assert strategy.given
    assert "task" not in excluded_texts(session)


@pytest.mark.contract("T4")
@pytest.mark.contract("T16")
@both_modes
async def test_every_message_of_the_users_input_is_kept_after_a_pause(stream: bool) -> None:
    strategy = ExcludeEverything()
    client = ScriptedChatClient([call_tool("guarded", "pending-1", number=1), "answer 2", "answer 3"])
    agent = valve_only_agent(client, strategy)
    session = agent.create_session()
    seed(session)

    paused = await run_turn(agent, ["task", "and more"], stream=stream, session=session)
    await run_turn(agent, answer_to(*requests_of(paused)), stream=stream, session=session)

    assert strategy.given
    assert not {"task", "and more"} & set(excluded_texts(session))


@pytest.mark.contract("T4")
@pytest.mark.contract("T16")
@both_modes
async def test_the_task_is_never_excluded_after_a_continuation_token(stream: bool) -> None:
    """The call that resumes such a turn has no input at all."""
    token: Any = {"token": "1"}
    strategy = ExcludeEverything()
    client = ScriptedChatClient([
        ChatResponse(messages=[Message(role="assistant", contents=["working on it"])], continuation_token=token),
        "answer 2",
        "answer 3",
    ])
    agent = valve_only_agent(client, strategy)
    session = agent.create_session()
    seed(session)

    await run_turn(agent, "task", stream=stream, session=session)
    await run_turn(agent, None, stream=stream, session=session, options={"continuation_token": token})

    assert client.calls == 3
    assert strategy.given
    assert "task" not in excluded_texts(session)


@pytest.mark.contract("T4")
@pytest.mark.contract("T16")
@both_modes
async def test_the_task_is_never_excluded_after_an_approval_that_the_user_dropped(stream: bool) -> None:
    """What the user says instead ends the turn that the task began."""
    strategy = ExcludeEverything()
    client = ScriptedChatClient([call_tool("guarded", "pending-1", number=1), "answer 2", "answer 3"])
    agent = valve_only_agent(client, strategy)
    session = agent.create_session()
    seed(session)

    await run_turn(agent, "task", stream=stream, session=session)
    await run_turn(agent, "never mind, do it the other way", stream=stream, session=session)

    assert strategy.given
    assert "task" not in excluded_texts(session)


@pytest.mark.contract("T16")
@both_modes
@both_persistences
async def test_a_call_from_before_a_pause_is_kept_with_its_result(stream: bool, per_service_call: bool) -> None:
    """The call is stored ahead of what the resuming ``agent.run`` stores, its result is in that; neither goes alone."""
    client = ScriptedChatClient([call_tool("guarded", "pending-1", number=1), *[search_reply(n) for n in range(2, 8)]])
    without_valve = valved_agent(client, None, None, per_service_call=per_service_call)
    agent = valve_only_agent(
        client,
        ExcludeEverything(),
        1500,
        middleware=[AgentLoopMiddleware(iterate(3), max_iterations=None)],
        require_per_service_call_history_persistence=per_service_call,
    )
    session = agent.create_session()
    seed(session)

    paused = await run_turn(without_valve, "task", stream=stream, session=session)
    await run_turn(agent, answer_to(*requests_of(paused)), stream=stream, session=session)

    assert any(text.startswith("earlier answer") for text in excluded_texts(session))
    assert [unpaired_call_ids(request.messages) for request in client.requests] == [set()] * client.calls


@pytest.mark.contract("T16")
@both_modes
@both_orders
@both_persistences
async def test_the_newest_tool_call_group_is_never_excluded(
    stream: bool, history_first: bool, per_service_call: bool
) -> None:
    """The first model call of every later iteration still sees the tool call of the one before, with its result."""
    client = ScriptedChatClient(search_then_answer)
    agent = valved_agent(
        client, ExcludeEverything(), 10, history_first=history_first, per_service_call=per_service_call
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    first_calls = client.requests[2::2]
    assert [call_ids(request.messages, "function_call")[-1:] for request in first_calls] == [
        ["call-1"],
        ["call-3"],
        ["call-5"],
        ["call-7"],
    ]
    assert [call_ids(request.messages, "function_result")[-1:] for request in first_calls] == [
        ["call-1"],
        ["call-3"],
        ["call-5"],
        ["call-7"],
    ]


@pytest.mark.contract("T4")
@pytest.mark.contract("T16")
@both_modes
@both_persistences
async def test_an_unresolved_call_is_never_excluded(stream: bool, per_service_call: bool) -> None:
    """Two of them, so that one is not kept for being in the newest group alone; the turn pauses with them."""
    client = ScriptedChatClient([
        call_tool("search", "call-1", number=1),
        "answer 2",
        [call_tool("guarded", "pending-1", number=1), call_tool("guarded", "pending-2", number=2)],
        "done",
    ])
    agent = valved_agent(client, ExcludeEverything(), 10, per_service_call=per_service_call)
    session = agent.create_session()

    paused = await run_turn(agent, "task", stream=stream, session=session)
    included = [
        message for message in stored_messages(session) if not message.additional_properties.get("_excluded", False)
    ]

    assert len(requests_of(paused)) == 2
    assert call_ids(included, "function_call") == ["pending-1", "pending-2"]


@pytest.mark.contract("T4")
@pytest.mark.contract("T16")
@both_modes
@both_persistences
async def test_an_unresolved_call_is_not_excluded_when_newer_groups_follow(
    stream: bool, per_service_call: bool
) -> None:
    """The user left the approval open and went on: until somebody answers, the call is as unresolved as before."""
    seen: list[list[str | None]] = []

    def script(call: int, messages: list[Message]) -> Content | str:
        if call == 1:
            return call_tool("guarded", "pending-1", number=1)
        if call in (4, 6):
            # The first model call of a later iteration: what is stored now is what the valve has left.
            stored = stored_messages(session)
            included = [message for message in stored if not message.additional_properties.get("_excluded", False)]
            seen.append(call_ids(included, "function_call"))
        return search_then_answer(call + 1, messages)

    agent = valved_agent(
        ScriptedChatClient(script), ExcludeEverything(), 10, iterations=3, per_service_call=per_service_call
    )
    session = agent.create_session()

    await run_turn(agent, "task", stream=stream, session=session)
    await run_turn(agent, "something else", stream=stream, session=session)

    assert seen == [["pending-1", "call-3"], ["pending-1", "call-5"]]


@pytest.mark.contract("T4")
@pytest.mark.contract("T16")
@both_modes
async def test_a_call_that_was_pending_under_pressure_gets_its_result(stream: bool) -> None:
    client = ScriptedChatClient([
        call_tool("search", "call-1", number=1),
        "answer 2",
        call_tool("guarded", "pending-1", number=1),
        "done",
    ])
    agent = valved_agent(client, ExcludeEverything(), 10, iterations=2)
    session = agent.create_session()

    paused = await run_turn(agent, "task", stream=stream, session=session)
    await run_turn(agent, answer_to(*requests_of(paused)), stream=stream, session=session)

    assert call_ids(client.requests[3].messages, "function_call") == ["pending-1"]
    assert call_ids(client.requests[3].messages, "function_result") == ["pending-1"]


@pytest.mark.contract("T7")
@pytest.mark.contract("T16")
@both_modes
async def test_a_nested_run_under_pressure_keeps_the_outer_task_and_call(stream: bool) -> None:
    """Parent and child share the history: the turn's user input is the parent's, and its call is not resolved yet."""

    def agent_with(client: ScriptedChatClient, *tools: Any) -> Agent:
        return Agent(
            client=client,
            name="child",
            tools=list(tools),
            context_providers=[
                InMemoryHistoryProvider(skip_excluded=True),
                CompactionProvider(after_strategy=ExcludeEverything(), mid_turn_max_tokens=10),  # type: ignore[call-arg]
            ],
            require_per_service_call_history_persistence=True,
        )

    child = agent_with(ScriptedChatClient(search_then_answer), search)
    client = ScriptedChatClient([call_tool("child", "nested-1", task="subtask"), "done"])
    agent = agent_with(client, child.as_tool(propagate_session=True))

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert "task" in texts(client.requests[1].messages)
    assert "nested-1" in call_ids(client.requests[1].messages, "function_call")
    assert "nested-1" in call_ids(client.requests[1].messages, "function_result")


@pytest.mark.contract("T7")
@pytest.mark.contract("T16")
@both_modes
async def test_the_provider_of_a_nested_agent_compacts_first_what_precedes_the_outer_turn(stream: bool) -> None:
    """Only the nested agent has a valve, and its runs begin in the middle of the turn."""
    strategy = ExcludeEverything()
    nested = valve_only_agent(ScriptedChatClient(["nested answer"]), strategy, 3000, middleware=[])

    @tool(approval_mode="never_require")
    async def delegate(number: int) -> str:
        """Ask the nested agent."""
        return (await run_turn(nested, f"subtask {number}", stream=stream, session=session)).text

    agent = Agent(
        client=ScriptedChatClient(call_tools_then_answer("delegate", 2)),
        tools=[delegate],
        context_providers=[InMemoryHistoryProvider(skip_excluded=True)],
    )
    session = agent.create_session()
    seed(session)

    await run_turn(agent, "task", stream=stream, session=session)

    assert [[text.split(" y")[0] for text in given] for given in strategy.given] == [["earlier task", "earlier answer"]]


# endregion
# region T16: what a strategy does to the store


@pytest.mark.contract("T16")
@both_modes
async def test_a_summary_that_is_made_while_the_store_grows_is_not_lost(stream: bool) -> None:
    """Two nested runs share the history: the strategy of one is at work when the other stores its messages."""
    compacting, has_grown = asyncio.Event(), asyncio.Event()

    async def summarize(messages: list[Message]) -> bool:
        compacting.set()
        await has_grown.wait()
        for message in messages:
            message.additional_properties["_excluded"] = True
        messages.insert(0, Message(role="assistant", contents=["summary"]))
        return True

    async def answer_late(call: int, messages: list[Message]) -> str:
        await compacting.wait()
        return "late answer"

    compacted = valve_only_agent(ScriptedChatClient(["x" * 400]), summarize, middleware=[])
    late = Agent(
        client=ScriptedChatClient(answer_late), context_providers=[InMemoryHistoryProvider(skip_excluded=True)]
    )

    async def run_late() -> None:
        await run_turn(late, "late subtask", stream=stream, session=session)
        has_grown.set()

    @tool(approval_mode="never_require")
    async def delegate(number: int) -> str:
        """Ask both agents."""
        running = asyncio.create_task(run_late())
        await run_turn(compacted, "subtask", stream=stream, session=session)
        compacting.set()
        await running
        return "done"

    agent = Agent(
        client=ScriptedChatClient(call_tools_then_answer("delegate", 1)),
        tools=[delegate],
        context_providers=[InMemoryHistoryProvider(skip_excluded=True)],
    )
    session = agent.create_session()
    seed(session)

    await run_turn(agent, "task", stream=stream, session=session)

    assert {"summary", "late subtask", "late answer"} <= set(texts(stored_messages(session)))


# endregion
# region T16: no boundary


@pytest.mark.contract("T16")
@both_modes
@both_orders
async def test_the_valve_does_not_go_through_after_run(stream: bool, history_first: bool) -> None:
    compaction = CountingCompactionProvider(after_strategy=ExcludeEverything(), mid_turn_max_tokens=10)
    agent = Agent(
        client=ScriptedChatClient(search_then_answer),
        tools=[search],
        context_providers=in_order(history_first, InMemoryHistoryProvider(skip_excluded=True), compaction),
        middleware=[AgentLoopMiddleware(iterate(4), max_iterations=None)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert compaction.turn_states == ["closing"]


@pytest.mark.contract("T16")
@both_modes
async def test_the_valve_is_no_boundary_for_other_providers(stream: bool) -> None:
    recorder = TurnRecorder()
    strategy = ExcludeEverything()
    agent = valved_agent(ScriptedChatClient(search_then_answer), strategy, 10, extra=[recorder])

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert len(strategy.given) > 1
    assert recorder.count == 1


@pytest.mark.contract("T16")
@both_modes
async def test_the_boundary_compacts_after_the_valve_too(stream: bool) -> None:
    """What the valve had to keep, the boundary gives to the strategy with everything else."""
    strategy = ExcludeEverything()
    agent = valved_agent(ScriptedChatClient(search_then_answer), strategy, 10)
    session = agent.create_session()

    await run_turn(agent, "task", stream=stream, session=session)

    assert "task" in strategy.given[-1]
    assert tokens(stored_messages(session)) == 0


# endregion
# region T16: a long turn


@pytest.mark.contract("T16")
@pytest.mark.parametrize("tokenizer", [CharacterEstimatorTokenizer(), None], ids=["tokenizer", "default_tokenizer"])
@both_modes
@both_persistences
async def test_sixty_tool_iterations_stay_below_the_limit_plus_one_iteration(
    stream: bool, per_service_call: bool, tokenizer: Any
) -> None:
    limit = 1000
    client = ScriptedChatClient(search_then_answer)
    compaction = CompactionProvider(
        after_strategy=SlidingWindowStrategy(keep_last_groups=4),
        tokenizer=tokenizer,
        mid_turn_max_tokens=limit,  # type: ignore[call-arg]
    )
    agent = Agent(
        client=client,
        tools=[search],
        context_providers=[InMemoryHistoryProvider(skip_excluded=True), compaction],
        middleware=[AgentLoopMiddleware(iterate(60), max_iterations=None)],
        require_per_service_call_history_persistence=per_service_call,
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    sizes = [tokens(request.messages) for request in client.requests]
    one_iteration = sizes[3] - sizes[1]
    assert client.calls == 120
    assert 0 < one_iteration < limit
    assert max(sizes) <= limit + one_iteration


@pytest.mark.contract("T16")
@both_modes
async def test_the_valve_of_a_harness_agent(stream: bool) -> None:
    """``create_harness_agent(mid_turn_max_tokens=N)`` hands the limit to its ``CompactionProvider``."""
    limit = 1000
    client = ScriptedChatClient(search_then_answer)
    included: list[int] = []

    def should_continue(*, iteration: int, session: AgentSession, **kwargs: Any) -> bool:
        included.append(tokens(stored_messages(session)))
        return iteration < 60

    agent = create_harness_agent(
        client,
        tools=[search],
        after_compaction_strategy=SlidingWindowStrategy(keep_last_groups=4),
        mid_turn_max_tokens=limit,  # type: ignore[call-arg]
        history_provider=InMemoryHistoryProvider(skip_excluded=True),
        loop_should_continue=should_continue,
        loop_max_iterations=None,
        disable_file_memory=True,
        disable_web_search=True,
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    one_iteration = included[1] - included[0]
    assert len(included) == 60
    assert 0 < one_iteration < limit
    assert max(included) <= limit + one_iteration


# endregion
