# Copyright (c) Microsoft. All rights reserved.

"""A turn-scoped provider that raises at the boundary (T15)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable

import pytest

from agent_framework import (
    Agent,
    AgentContext,
    AgentLoopMiddleware,
    AgentMiddleware,
    ContextProvider,
    InMemoryHistoryProvider,
    ResponseStream,
)

from ._turn_scope_helpers import (
    ScriptedChatClient,
    SelfRunningAgent,
    TurnRecorder,
    both_modes,
    both_orders,
    in_order,
    iterate,
    run_turn,
    settle,
    stored_messages,
    texts,
)

in_a_loop_or_not = pytest.mark.parametrize("in_a_loop", [False, True], ids=["no_loop", "loop"])


class Boom(Exception):
    """What the providers of these tests raise."""


def agent_with(*providers: ContextProvider, in_a_loop: bool) -> Agent:
    loop = AgentLoopMiddleware(
        iterate(2), max_iterations=None, next_message=lambda **kwargs: "go on", inject_progress=False
    )
    return Agent(
        client=ScriptedChatClient(["answer 1", "answer 2"]),
        context_providers=list(providers),
        middleware=[loop] if in_a_loop else None,
    )


# region T15


@pytest.mark.contract("T15")
@both_modes
@both_orders
@in_a_loop_or_not
async def test_the_error_reaches_the_caller_as_itself(stream: bool, history_first: bool, in_a_loop: bool) -> None:
    error = Boom("boom")
    recorder = TurnRecorder(error=error)
    agent = agent_with(*in_order(history_first, InMemoryHistoryProvider(), recorder), in_a_loop=in_a_loop)

    with pytest.raises(Boom) as raised:
        await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert raised.value is error
    assert recorder.count == 1


@pytest.mark.contract("T15")
@both_modes
@in_a_loop_or_not
async def test_the_remaining_turn_scoped_providers_have_their_turn(stream: bool, in_a_loop: bool) -> None:
    """The order of ``after_run`` is the reverse of the list, so the one that raises comes first."""
    last = TurnRecorder("last")
    agent = agent_with(InMemoryHistoryProvider(), last, TurnRecorder("first", error=Boom("boom")), in_a_loop=in_a_loop)

    with pytest.raises(Boom):
        await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert last.count == 1


@pytest.mark.contract("T15")
@both_modes
@in_a_loop_or_not
async def test_the_first_error_is_raised_and_later_ones_are_logged(
    stream: bool, in_a_loop: bool, caplog: pytest.LogCaptureFixture
) -> None:
    agent = agent_with(
        InMemoryHistoryProvider(),
        TurnRecorder("third", error=Boom("third boom")),
        TurnRecorder("second", error=Boom("second boom")),
        TurnRecorder("first", error=Boom("first boom")),
        in_a_loop=in_a_loop,
    )

    with caplog.at_level(logging.WARNING), pytest.raises(Boom, match="first boom"):
        await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert "second boom" in caplog.text
    assert "third boom" in caplog.text


@pytest.mark.contract("T15")
@both_modes
@both_orders
@in_a_loop_or_not
async def test_what_was_persisted_stays(stream: bool, history_first: bool, in_a_loop: bool) -> None:
    recorder = TurnRecorder(error=Boom("boom"))
    agent = agent_with(*in_order(history_first, InMemoryHistoryProvider(), recorder), in_a_loop=in_a_loop)
    session = agent.create_session()

    with pytest.raises(Boom):
        await run_turn(agent, "task", stream=stream, session=session)

    expected = ["task", "answer 1", "go on", "answer 2"] if in_a_loop else ["task", "answer 1"]
    assert texts(stored_messages(session)) == expected


@pytest.mark.contract("T15")
@both_orders
@in_a_loop_or_not
async def test_asking_for_the_final_response_after_the_iteration_does_not_run_the_boundary_again(
    history_first: bool, in_a_loop: bool
) -> None:
    """Whether it raises again or returns the response is left open."""
    recorder = TurnRecorder(error=Boom("boom"))
    agent = agent_with(*in_order(history_first, InMemoryHistoryProvider(), recorder), in_a_loop=in_a_loop)

    response_stream = agent.run("task", stream=True, session=agent.create_session())
    with pytest.raises(Boom):
        async for _ in response_stream:
            pass
    for _ in range(2):
        with contextlib.suppress(Exception):
            await response_stream.get_final_response()
    await settle()

    assert recorder.count == 1


@pytest.mark.contract("T15")
@both_orders
@in_a_loop_or_not
async def test_asking_for_the_final_response_twice_does_not_run_the_boundary_again(
    history_first: bool, in_a_loop: bool
) -> None:
    error = Boom("boom")
    recorder = TurnRecorder(error=error)
    agent = agent_with(*in_order(history_first, InMemoryHistoryProvider(), recorder), in_a_loop=in_a_loop)

    response_stream = agent.run("task", stream=True, session=agent.create_session())
    with pytest.raises(Boom) as raised:
        await response_stream.get_final_response()
    with contextlib.suppress(Exception):
        await response_stream.get_final_response()
    await settle()

    assert raised.value is error
    assert recorder.count == 1


@pytest.mark.contract("T15")
@both_orders
@in_a_loop_or_not
async def test_nothing_is_stored_twice_when_the_final_response_is_asked_for_again(
    history_first: bool, in_a_loop: bool
) -> None:
    recorder = TurnRecorder(error=Boom("boom"))
    agent = agent_with(*in_order(history_first, InMemoryHistoryProvider(), recorder), in_a_loop=in_a_loop)
    session = agent.create_session()

    response_stream = agent.run("task", stream=True, session=session)
    with pytest.raises(Boom):
        await response_stream.get_final_response()
    with contextlib.suppress(Exception):
        await response_stream.get_final_response()

    expected = ["task", "answer 1", "go on", "answer 2"] if in_a_loop else ["task", "answer 1"]
    assert texts(stored_messages(session)) == expected


@pytest.mark.contract("T15")
@both_modes
async def test_a_retry_middleware_does_not_get_to_see_the_error(stream: bool) -> None:
    """The boundary is around every middleware, so the turn is not run again because of it."""

    class RetryOnError(AgentMiddleware):
        async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
            try:
                await call_next()
                if isinstance(context.result, ResponseStream):
                    await context.result.get_final_response()
            except Boom:
                await call_next()

    client = ScriptedChatClient()
    recorder = TurnRecorder(error=Boom("boom"))
    agent = Agent(client=client, context_providers=[InMemoryHistoryProvider(), recorder], middleware=[RetryOnError()])

    with pytest.raises(Boom):
        await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert (client.calls, recorder.count) == (1, 1)


@pytest.mark.contract("T15")
@both_modes
@in_a_loop_or_not
async def test_the_next_turn_has_its_boundary(stream: bool, in_a_loop: bool) -> None:
    recorder = TurnRecorder(error=Boom("boom"))
    agent = agent_with(InMemoryHistoryProvider(), recorder, in_a_loop=in_a_loop)
    session = agent.create_session()

    with pytest.raises(Boom):
        await run_turn(agent, "task", stream=stream, session=session)
    recorder.error = None
    await run_turn(agent, "another task", stream=stream, session=session)

    assert [call.input_texts for call in recorder.calls] == [["task"], ["another task"]]


@pytest.mark.contract("T15")
@both_modes
async def test_an_agent_with_its_own_run_loop_raises_the_error(stream: bool) -> None:
    error = Boom("boom")
    last = TurnRecorder("last")
    agent = SelfRunningAgent(context_providers=[InMemoryHistoryProvider(), last, TurnRecorder("first", error=error)])

    with pytest.raises(Boom) as raised:
        await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert raised.value is error
    assert last.count == 1


# endregion
