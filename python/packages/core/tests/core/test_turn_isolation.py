# Copyright (c) Microsoft. All rights reserved.

"""A paused or abandoned stream affects nobody else (T8)."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Generator
from typing import Any

import pytest

from agent_framework import (
    Agent,
    AgentLoopMiddleware,
    AgentResponse,
    AgentSession,
    InMemoryHistoryProvider,
    ResponseStream,
    observability,
    tool,
)

from ._turn_scope_helpers import (
    ScriptedChatClient,
    SelfRunningAgent,
    TurnRecorder,
    both_modes,
    call_tools_then_answer,
    iterate,
    run_turn,
    settle,
)

in_a_loop_or_not = pytest.mark.parametrize("in_a_loop", [False, True], ids=["no_loop", "loop"])

# How many updates of a stream to take so that it is paused in the middle of its last run.
MIDDLE = {False: 1, True: 5}


def two_update_agent(recorder: TurnRecorder, in_a_loop: bool) -> Agent:
    """Two updates a run; in a loop two runs, with the progress and the nudge in between."""
    return Agent(
        client=ScriptedChatClient([["answer", " goes on"]]),
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[AgentLoopMiddleware(iterate(2), max_iterations=None)] if in_a_loop else None,
    )


async def take(response_stream: Any, updates: int) -> None:
    for _ in range(updates):
        await response_stream.__anext__()


# region T8: a paused stream


@pytest.mark.contract("T8")
@pytest.mark.parametrize("same_agent", [True, False], ids=["same_agent", "another_agent"])
@in_a_loop_or_not
@both_modes
async def test_a_run_on_another_session_ends_its_own_turn_while_a_stream_is_paused(
    stream: bool, in_a_loop: bool, same_agent: bool
) -> None:
    recorder, others = TurnRecorder(), TurnRecorder("others")
    agent = two_update_agent(recorder, in_a_loop)
    other = agent if same_agent else two_update_agent(others, in_a_loop)
    paused_session, session = agent.create_session(), other.create_session()

    paused = agent.run("task", stream=True, session=paused_session)
    await take(paused, MIDDLE[in_a_loop])
    await run_turn(other, "another task", stream=stream, session=session)
    while_paused = [call.session for call in (*recorder.calls, *others.calls)]
    await paused.get_final_response()

    assert while_paused == [session]
    assert [call.session for call in recorder.calls] == ([session] if same_agent else []) + [paused_session]


@pytest.mark.contract("T8")
@in_a_loop_or_not
@both_modes
async def test_a_run_of_the_consumer_on_the_same_session_is_a_turn_of_its_own(stream: bool, in_a_loop: bool) -> None:
    """The consumer of a stream is not in the stream's call tree, so what it runs between two pulls is not nested."""
    recorder, others = TurnRecorder(), TurnRecorder("others")
    agent, other = two_update_agent(recorder, in_a_loop), two_update_agent(others, in_a_loop=False)
    session = agent.create_session()

    paused = agent.run("task", stream=True, session=session)
    await take(paused, MIDDLE[in_a_loop])
    await run_turn(other, "another task", stream=stream, session=session)
    while_paused = (recorder.count, others.count)
    await paused.get_final_response()

    assert while_paused == (0, 1)
    assert (recorder.count, others.count) == (1, 1)


@pytest.mark.contract("T8")
@both_modes
async def test_an_agent_with_its_own_run_loop_ends_its_turn_while_a_stream_is_paused(stream: bool) -> None:
    recorder, others = TurnRecorder(), TurnRecorder("others")
    agent = two_update_agent(recorder, in_a_loop=True)
    other = SelfRunningAgent(context_providers=[InMemoryHistoryProvider(), others])

    paused = agent.run("task", stream=True, session=agent.create_session())
    await take(paused, MIDDLE[True])
    await run_turn(other, "another task", stream=stream, session=other.create_session())

    assert others.count == 1


@pytest.mark.contract("T8")
@in_a_loop_or_not
async def test_a_stream_that_is_taken_up_again_ends_its_turn(in_a_loop: bool) -> None:
    recorder = TurnRecorder()
    agent = two_update_agent(recorder, in_a_loop)

    response_stream = agent.run("task", stream=True, session=agent.create_session())
    async for _ in response_stream:
        break
    while_paused = recorder.count
    await response_stream.get_final_response()

    assert (while_paused, recorder.count) == (0, 1)


@pytest.mark.contract("T8")
async def test_two_interleaved_streams_end_two_turns() -> None:
    """Each at its own end: the second of them ends first."""
    recorder = TurnRecorder()
    agent = two_update_agent(recorder, in_a_loop=True)
    first_session, second_session = agent.create_session(), agent.create_session()

    first = agent.run("first", stream=True, session=first_session)
    second = agent.run("second", stream=True, session=second_session)
    for _ in range(MIDDLE[True]):
        await first.__anext__()
        await second.__anext__()
    await second.get_final_response()
    await first.get_final_response()

    assert [(call.session, call.input_texts) for call in recorder.calls] == [
        (second_session, ["second"]),
        (first_session, ["first"]),
    ]


# endregion
# region T8: other tasks


@pytest.fixture
def no_telemetry() -> Generator[None, None, None]:
    """The context variables of the telemetry cannot be reset in another task than the one that set them."""
    settings = observability.OBSERVABILITY_SETTINGS
    before = settings.enable_instrumentation
    settings.enable_instrumentation = False
    yield
    settings.enable_instrumentation = before


@pytest.mark.contract("T8")
@in_a_loop_or_not
async def test_a_stream_may_be_consumed_in_another_task(in_a_loop: bool) -> None:
    recorder = TurnRecorder()
    agent = two_update_agent(recorder, in_a_loop)
    response_stream = agent.run("task", stream=True, session=agent.create_session())

    async def consume() -> AgentResponse:
        async for _ in response_stream:
            pass
        return await response_stream.get_final_response()

    await asyncio.create_task(consume())

    assert recorder.count == 1


@pytest.mark.contract("T8")
@pytest.mark.usefixtures("no_telemetry")
@in_a_loop_or_not
async def test_every_update_may_be_pulled_in_a_task_of_its_own(in_a_loop: bool) -> None:
    """As a server does that waits for the next update and for something else at the same time."""
    recorder = TurnRecorder()
    agent = two_update_agent(recorder, in_a_loop)
    response_stream = agent.run("task", stream=True, session=agent.create_session())

    async def pull() -> bool:
        try:
            await response_stream.__anext__()
        except StopAsyncIteration:
            return False
        return True

    while await asyncio.create_task(pull()):
        pass

    assert recorder.count == 1


@pytest.mark.contract("T8")
@pytest.mark.usefixtures("no_telemetry")
@in_a_loop_or_not
async def test_the_final_response_may_be_awaited_in_another_task(in_a_loop: bool) -> None:
    recorder = TurnRecorder()
    agent = two_update_agent(recorder, in_a_loop)
    response_stream = agent.run("task", stream=True, session=agent.create_session())

    await take(response_stream, MIDDLE[in_a_loop])
    response = await asyncio.create_task(response_stream.get_final_response())

    assert response.messages[-1].text == "answer goes on"
    assert recorder.count == 1


@pytest.mark.contract("T8")
@both_modes
async def test_the_task_of_a_finished_turn_starts_new_turns(stream: bool) -> None:
    """A task that was started inside of a turn inherits its context; what it runs after the turn is its own."""
    recorder, others = TurnRecorder(), TurnRecorder("others")
    other = two_update_agent(others, in_a_loop=False)
    go_on = asyncio.Event()
    tasks: list[asyncio.Task[Any]] = []

    async def later(session: AgentSession) -> None:
        await go_on.wait()
        await run_turn(other, "another task", stream=stream, session=session)

    def should_continue(*, iteration: int, session: AgentSession, **kwargs: Any) -> bool:
        tasks.append(asyncio.create_task(later(session)))
        return False

    agent = Agent(
        client=ScriptedChatClient(),
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[AgentLoopMiddleware(should_continue, max_iterations=None)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())
    go_on.set()
    await asyncio.gather(*tasks)

    assert (recorder.count, others.count) == (1, 1)


# endregion
# region T8: an abandoned stream


@pytest.mark.contract("T8")
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "collected"])
@in_a_loop_or_not
@both_modes
async def test_the_next_run_on_the_session_of_an_abandoned_stream_ends_its_own_turn(
    stream: bool, in_a_loop: bool, kept: bool
) -> None:
    recorder = TurnRecorder()
    agent = two_update_agent(recorder, in_a_loop)
    session = agent.create_session()

    abandoned: Any = agent.run("abandoned", stream=True, session=session)
    await take(abandoned, MIDDLE[in_a_loop])
    if not kept:
        del abandoned
        await settle()
    await run_turn(agent, "task", stream=stream, session=session)

    assert [(call.input_texts, len(call.answers)) for call in recorder.calls] == [(["task"], 2 if in_a_loop else 1)]


@pytest.mark.contract("T8")
@both_modes
async def test_a_stream_that_is_collected_during_the_next_turn_fires_nothing_in_it(stream: bool) -> None:
    recorder = TurnRecorder()
    abandoned: list[Any] = []
    fired: list[int] = []

    async def should_continue(*, iteration: int, **kwargs: Any) -> bool:
        if kwargs["original_messages"][-1].text == "task":
            abandoned.clear()
            await settle()
            fired.append(recorder.count)
        return iteration < 2

    agent = Agent(
        client=ScriptedChatClient([["answer", " goes on"]]),
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[AgentLoopMiddleware(should_continue, max_iterations=None)],
    )
    session = agent.create_session()

    abandoned.append(agent.run("abandoned", stream=True, session=session))
    await take(abandoned[0], MIDDLE[True])
    await run_turn(agent, "task", stream=stream, session=session)
    gc.collect()

    assert fired == [0, 0]
    assert [call.input_texts for call in recorder.calls] == [["task"]]


@pytest.mark.contract("T7")
@pytest.mark.contract("T8")
@pytest.mark.parametrize(
    "abandon", ["let_go", *[method for method in ("close", "aclose") if hasattr(ResponseStream, method)]]
)
@pytest.mark.parametrize("next_turn", [False, True], ids=["alone", "after_the_next_turn"])
async def test_a_background_run_that_an_abandoned_stream_started_is_a_turn_of_its_own(
    next_turn: bool, abandon: str
) -> None:
    """A guard, green without the turn scope too: the turn that it was started in will never have a boundary."""
    recorder = TurnRecorder()
    may_run = asyncio.Event()
    tasks: list[asyncio.Task[Any]] = []
    inner = Agent(client=ScriptedChatClient(), context_providers=[InMemoryHistoryProvider("inner_history"), recorder])

    async def run_later() -> None:
        await may_run.wait()
        await inner.run("background task", session=session)

    @tool(approval_mode="never_require")
    async def start(number: int) -> str:
        """Start a run and do not wait for it."""
        tasks.append(asyncio.create_task(run_later()))
        return "started"

    agent = Agent(
        client=ScriptedChatClient(call_tools_then_answer("start", 1)),
        tools=[start],
        context_providers=[InMemoryHistoryProvider()],
    )
    session = agent.create_session()

    response_stream: Any = agent.run("task", stream=True, session=session)
    async for _ in response_stream:
        if tasks:
            break
    if abandon != "let_go":
        await getattr(response_stream, abandon)()
    del response_stream
    await settle()
    if next_turn:
        await agent.run("another task", session=session)
    may_run.set()
    await asyncio.gather(*tasks)

    assert [call.input_texts for call in recorder.calls] == [["background task"]]


# endregion
