# Copyright (c) Microsoft. All rights reserved.

"""``MiddlewareTermination`` is a normal end of a turn in which a run completed (T6)."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agent_framework import (
    Agent,
    AgentContext,
    AgentLoopMiddleware,
    AgentMiddleware,
    AgentResponse,
    AgentResponseUpdate,
    InMemoryHistoryProvider,
    Message,
    MiddlewareTermination,
    ResponseStream,
)

from ._turn_scope_helpers import (
    ScriptedChatClient,
    TurnRecorder,
    both_modes,
    both_orders,
    in_order,
    iterate,
    run_turn,
)

in_a_loop_or_not = pytest.mark.parametrize("in_a_loop", [False, True], ids=["no_loop", "loop"])


class TerminateBefore(AgentMiddleware):
    """Terminates instead of starting run number ``run``."""

    def __init__(self, run: int) -> None:
        self.run = run
        self.started = 0

    async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
        self.started += 1
        if self.started == self.run:
            raise MiddlewareTermination("no further run")
        await call_next()


class TerminateAfter(AgentMiddleware):
    """Terminates when a run has completed; a stream is drained first, and its updates are replayed to the caller."""

    async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
        await call_next()
        if isinstance(context.result, ResponseStream):
            final = await context.result.get_final_response()
            context.result = replay(final)
        raise MiddlewareTermination("that is enough")


class TerminateBehind(AgentMiddleware):
    """Terminates when the rest of the chain has returned, and leaves a stream as it is."""

    async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
        await call_next()
        raise MiddlewareTermination("that is enough")


class TerminateAtUpdate(AgentMiddleware):
    """Terminates from a hook on the stream, when it comes to an update with ``text``."""

    def __init__(self, text: str) -> None:
        self.text = text

    async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
        def terminate(update: AgentResponseUpdate) -> None:
            if update.text == self.text:
                raise MiddlewareTermination("that is enough")

        context.stream_transform_hooks.append(terminate)
        await call_next()


class AnswerInstead(AgentMiddleware):
    """Answers in the place of the agent, by terminating or by not calling ``call_next()``."""

    def __init__(self, *, terminate: bool) -> None:
        self.terminate = terminate

    async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
        response = AgentResponse(messages=[Message(role="assistant", contents=["blocked"])])
        context.result = replay(response) if context.stream else response
        if self.terminate:
            raise MiddlewareTermination("blocked")


def replay(response: AgentResponse) -> ResponseStream[AgentResponseUpdate, AgentResponse]:
    async def updates() -> Any:
        for message in response.messages:
            yield AgentResponseUpdate(contents=message.contents, role=message.role, message_id=message.message_id)

    return ResponseStream(updates(), finalizer=AgentResponse.from_updates)


# region T6


@pytest.mark.contract("T6")
@both_modes
@both_orders
async def test_termination_before_a_later_iteration_ends_the_turn(stream: bool, history_first: bool) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient(["answer 1"])
    agent = Agent(
        client=client,
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=[AgentLoopMiddleware(iterate(5), max_iterations=None), TerminateBefore(2)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert client.calls == 1
    assert [call.stored_texts for call in recorder.calls] == [["task", "answer 1"]]


@pytest.mark.contract("T6")
@both_modes
@both_orders
async def test_termination_after_a_run_ends_the_turn(stream: bool, history_first: bool) -> None:
    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient(["answer 1"]),
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=[TerminateAfter()],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert [call.stored_texts for call in recorder.calls] == [["task", "answer 1"]]


@pytest.mark.contract("T6")
@both_modes
async def test_termination_after_the_run_of_an_iteration_ends_the_turn(stream: bool) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient(["answer 1"])
    agent = Agent(
        client=client,
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[AgentLoopMiddleware(iterate(5), max_iterations=None), TerminateAfter()],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert client.calls == 1
    assert recorder.count == 1


@pytest.mark.contract("T6")
@both_modes
async def test_a_loop_whose_chain_terminates_after_a_run_ends_with_that_run(stream: bool) -> None:
    """In a stream too, where the chain has returned before the run is consumed."""
    recorder = TurnRecorder()
    client = ScriptedChatClient(["answer 1"])
    agent = Agent(
        client=client,
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[AgentLoopMiddleware(iterate(5), max_iterations=None), TerminateBehind()],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert client.calls == 1
    assert recorder.count == 1


@pytest.mark.contract("T6")
@both_modes
async def test_termination_by_the_predicate_ends_the_turn(stream: bool) -> None:
    """Whoever raises it inside of the turn: here ``should_continue``, after one completed run.

    The contract calls it a normal end in both modes, so a caller who streams does not see the exception either.
    """
    recorder = TurnRecorder()

    def should_continue(**kwargs: Any) -> bool:
        raise MiddlewareTermination("that is enough")

    agent = Agent(
        client=ScriptedChatClient(["answer 1"]),
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[AgentLoopMiddleware(should_continue, max_iterations=None)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert recorder.count == 1


@pytest.mark.contract("T6")
@both_modes
async def test_the_boundary_after_a_termination_has_the_completed_runs(stream: bool) -> None:
    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient(["answer 1", "answer 2"]),
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[AgentLoopMiddleware(iterate(5), max_iterations=None), TerminateBefore(3)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert recorder.boundary.answers == ["answer 1", "answer 2"]


@pytest.mark.contract("T6")
@pytest.mark.parametrize("terminate", [True, False], ids=["terminates", "does_not_call_next"])
@both_modes
async def test_a_turn_without_a_completed_run_has_no_boundary(stream: bool, terminate: bool) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient()
    agent = Agent(
        client=client,
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[AnswerInstead(terminate=terminate)],
    )

    response = await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert response.text == "blocked"
    assert client.calls == 0
    assert recorder.count == 0


@pytest.mark.contract("T6")
@pytest.mark.parametrize("terminate", [True, False], ids=["terminates", "does_not_call_next"])
@both_modes
async def test_a_loop_without_a_completed_run_has_no_boundary(stream: bool, terminate: bool) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient()
    agent = Agent(
        client=client,
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[AgentLoopMiddleware(iterate(2), max_iterations=None), AnswerInstead(terminate=terminate)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert client.calls == 0
    assert recorder.count == 0


@pytest.mark.contract("T6")
@both_modes
async def test_termination_before_the_first_run_has_no_boundary(stream: bool) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient()
    agent = Agent(
        client=client,
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[AgentLoopMiddleware(iterate(2), max_iterations=None), TerminateBefore(1)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert client.calls == 0
    assert recorder.count == 0


@pytest.mark.contract("T6")
@in_a_loop_or_not
@both_modes
async def test_termination_by_the_model_call_of_the_only_run_has_no_boundary(stream: bool, in_a_loop: bool) -> None:
    """A guard, green without the turn scope too. Whether the caller sees the exception is left open."""
    recorder = TurnRecorder()
    client = ScriptedChatClient([MiddlewareTermination("that is enough")])
    agent = Agent(
        client=client,
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[AgentLoopMiddleware(iterate(2), max_iterations=None)] if in_a_loop else None,
    )

    with contextlib.suppress(MiddlewareTermination):
        await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert client.calls == 1
    assert recorder.count == 0


@pytest.mark.contract("T6")
@in_a_loop_or_not
async def test_termination_in_the_middle_of_the_only_run_has_no_boundary(in_a_loop: bool) -> None:
    """From a hook on its stream, between two of its updates."""
    recorder = TurnRecorder()
    client = ScriptedChatClient([["answer", " goes on", " and on"]])
    loop = [AgentLoopMiddleware(iterate(2), max_iterations=None)] if in_a_loop else []
    agent = Agent(
        client=client,
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[*loop, TerminateAtUpdate(" goes on")],
    )

    with contextlib.suppress(MiddlewareTermination):
        await run_turn(agent, "task", stream=True, session=agent.create_session())

    assert client.calls == 1
    assert recorder.count == 0


# endregion
