# Copyright (c) Microsoft. All rights reserved.

"""The caller's ``agent.run`` owns the boundary, whatever runs again inside it (T2)."""

from __future__ import annotations

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
    AgentSession,
    InMemoryHistoryProvider,
    ResponseStream,
    SessionContext,
    ToolApprovalMiddleware,
    create_harness_agent,
    tool,
)

from ._turn_scope_helpers import (
    RunRecorder,
    ScriptedChatClient,
    SelfRunningAgentWithMiddleware,
    TurnRecorder,
    both_modes,
    both_orders,
    call_tools_then_answer,
    in_order,
    iterate,
    run_turn,
)


@tool(approval_mode="always_require")
def guarded(number: int) -> str:
    """Do something that needs an approval."""
    return f"did {number}"


def auto_approve() -> ToolApprovalMiddleware:
    return ToolApprovalMiddleware(auto_approval_rules=[lambda function_call: True])


def harness(client: ScriptedChatClient, **kwargs: Any) -> Agent:
    return create_harness_agent(client, disable_file_memory=True, disable_web_search=True, **kwargs)


class Attempts(AgentMiddleware):
    """A user's retry middleware: calls ``call_next()`` several times and keeps the last attempt."""

    def __init__(self, attempts: int) -> None:
        self.attempts = attempts

    async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
        for attempt in range(1, self.attempts + 1):
            await call_next()
            if isinstance(context.result, ResponseStream) and attempt < self.attempts:
                await context.result.get_final_response()


class AttemptsInTheStream(AgentMiddleware):
    """The same for streams, which makes its attempts while the caller consumes the one stream it returns."""

    def __init__(self, attempts: int) -> None:
        self.attempts = attempts

    async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
        async def attempts() -> Any:
            for _ in range(self.attempts):
                await call_next()
                assert isinstance(context.result, ResponseStream)
                async for update in context.result:
                    yield update

        context.result = ResponseStream[AgentResponseUpdate, AgentResponse](
            attempts(), finalizer=AgentResponse.from_updates
        )


class RetryOnError(AgentMiddleware):
    """Starts a run that failed once again, a stream while the caller consumes the one it returns."""

    async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
        async def attempt() -> Any:
            await call_next()
            if isinstance(context.result, ResponseStream):
                async for update in context.result:
                    yield update

        async def attempts() -> Any:
            for last in (False, True):
                try:
                    async for update in attempt():
                        yield update
                except RuntimeError:
                    if last:
                        raise
                else:
                    return

        if context.stream:
            context.result = ResponseStream[AgentResponseUpdate, AgentResponse](
                attempts(), finalizer=AgentResponse.from_updates
            )
        else:
            async for _ in attempts():
                pass


class FailingOnce(RunRecorder):
    """A run-scoped provider, a store that is down for a moment for instance."""

    async def after_run(
        self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        await super().after_run(agent=agent, session=session, context=context, state=state)
        if self.count == 1:
            raise RuntimeError("store down")


# region T2


@pytest.mark.contract("T2")
@both_modes
@both_orders
async def test_two_stacked_loops_fire_once(stream: bool, history_first: bool) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient()
    agent = Agent(
        client=client,
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=[
            AgentLoopMiddleware(iterate(3), max_iterations=None),
            AgentLoopMiddleware(iterate(2), max_iterations=None),
        ],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert client.calls == 6
    assert recorder.count == 1


@pytest.mark.contract("T2")
@both_modes
async def test_a_loop_in_the_agent_and_a_loop_in_the_run_fire_once(stream: bool) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient()
    agent = Agent(
        client=client,
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[AgentLoopMiddleware(iterate(2), max_iterations=None)],
    )

    await run_turn(
        agent,
        "task",
        stream=stream,
        session=agent.create_session(),
        middleware=[AgentLoopMiddleware(iterate(2), max_iterations=None)],
    )

    assert client.calls == 4
    assert recorder.count == 1


@pytest.mark.contract("T2")
@both_modes
async def test_a_harness_loop_around_a_judge_loop_fires_once(stream: bool) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient()
    judge = ScriptedChatClient(["VERDICT: MORE", "VERDICT: DONE"])
    agent = harness(
        client,
        context_providers=[recorder],
        loop_should_continue=iterate(2),
        loop_max_iterations=None,
        middleware=[AgentLoopMiddleware.with_judge(judge)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert (client.calls, judge.calls) == (3, 3)
    assert recorder.count == 1


@pytest.mark.contract("T2")
@both_modes
async def test_a_loop_that_a_harness_agent_is_given_as_middleware_fires_once(stream: bool) -> None:
    """The harness's tool approval is outside of such a loop, and starts it again after every approval."""
    recorder = TurnRecorder()
    client = ScriptedChatClient(call_tools_then_answer("guarded", 3))
    agent = harness(
        client,
        tools=[guarded],
        auto_approval_rules=[lambda function_call: True],
        context_providers=[recorder],
        middleware=[AgentLoopMiddleware(iterate(2), max_iterations=None)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert client.calls == 5
    assert recorder.count == 1


@pytest.mark.contract("T2")
@both_modes
async def test_a_harness_loop_fires_once(stream: bool) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient()
    agent = harness(client, context_providers=[recorder], loop_should_continue=iterate(3), loop_max_iterations=None)

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert client.calls == 3
    assert recorder.count == 1


@pytest.mark.contract("T2")
@both_modes
async def test_auto_approved_calls_of_a_harness_agent_without_a_loop_fire_once(stream: bool) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient(call_tools_then_answer("guarded", 4))
    agent = harness(
        client, tools=[guarded], context_providers=[recorder], auto_approval_rules=[lambda function_call: True]
    )

    response = await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert response.messages[-1].text == "answer 5"
    assert recorder.count == 1


@pytest.mark.contract("T2")
@both_modes
@both_orders
async def test_auto_approved_calls_without_a_loop_fire_once(stream: bool, history_first: bool) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient(call_tools_then_answer("guarded", 3))
    agent = Agent(
        client=client,
        tools=[guarded],
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=[auto_approve()],
    )

    response = await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert response.messages[-1].text == "answer 4"
    assert recorder.count == 1


@pytest.mark.contract("T2")
@both_modes
@both_orders
async def test_auto_approved_calls_inside_a_loop_fire_once(stream: bool, history_first: bool) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient(call_tools_then_answer("guarded", 3))
    agent = Agent(
        client=client,
        tools=[guarded],
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=[AgentLoopMiddleware(iterate(2), max_iterations=None), auto_approve()],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert client.calls == 5
    assert recorder.count == 1


@pytest.mark.contract("T2")
@both_modes
@both_orders
async def test_auto_approved_calls_outside_a_loop_fire_once(stream: bool, history_first: bool) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient(call_tools_then_answer("guarded", 3))
    agent = Agent(
        client=client,
        tools=[guarded],
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=[auto_approve(), AgentLoopMiddleware(iterate(2), max_iterations=None)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert client.calls == 5
    assert recorder.count == 1


@pytest.mark.contract("T2")
@both_modes
@both_orders
async def test_a_retry_middleware_fires_once(stream: bool, history_first: bool) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient()
    agent = Agent(
        client=client,
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=[Attempts(3)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert client.calls == 3
    assert recorder.count == 1


@pytest.mark.contract("T2")
async def test_a_retry_middleware_that_makes_its_attempts_in_the_stream_fires_once() -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient()
    agent = Agent(
        client=client,
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[AttemptsInTheStream(3)],
    )

    await run_turn(agent, "task", stream=True, session=agent.create_session())

    assert client.calls == 3
    assert recorder.count == 1


@pytest.mark.contract("T2")
@pytest.mark.parametrize("outside", [True, False], ids=["outside_the_loop", "inside_the_loop"])
@both_modes
async def test_a_retry_middleware_and_a_loop_fire_once(stream: bool, outside: bool) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient()
    loop = AgentLoopMiddleware(iterate(2), max_iterations=None)
    agent = Agent(
        client=client,
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[Attempts(2), loop] if outside else [loop, Attempts(2)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert client.calls == 4
    assert recorder.count == 1


@pytest.mark.contract("T1")
@pytest.mark.contract("T2")
@both_modes
async def test_a_run_scoped_provider_that_fails_in_an_attempt_does_not_cost_the_boundary(stream: bool) -> None:
    """A guard, green without the turn scope too: the attempt that did not fail ends the turn."""
    recorder = TurnRecorder()
    failing = FailingOnce()
    agent = Agent(
        client=ScriptedChatClient(),
        context_providers=[InMemoryHistoryProvider(), recorder, failing],
        middleware=[RetryOnError()],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert failing.count == 2
    assert recorder.count == 1


@pytest.mark.contract("T1")
@pytest.mark.contract("T2")
@pytest.mark.parametrize("from_result_hook", [False, True], ids=["in_the_run", "in_a_result_hook"])
@both_modes
async def test_nor_does_it_cost_the_boundary_of_an_agent_with_its_own_run_loop(
    stream: bool, from_result_hook: bool
) -> None:
    """A guard, green without the turn scope too."""
    recorder = TurnRecorder()
    failing = FailingOnce()
    agent = SelfRunningAgentWithMiddleware(
        from_result_hook=from_result_hook,
        context_providers=[InMemoryHistoryProvider(), recorder, failing],
        middleware=[RetryOnError()],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert failing.count == 2
    assert recorder.count == 1


@pytest.mark.contract("T2")
@both_modes
async def test_run_scoped_providers_still_fire_after_every_attempt(
    stream: bool,
) -> None:
    """A guard, green without the turn scope too."""
    run_scoped = RunRecorder()
    agent = Agent(
        client=ScriptedChatClient(),
        context_providers=[InMemoryHistoryProvider(), run_scoped, TurnRecorder()],
        middleware=[Attempts(3)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert run_scoped.count == 3


@pytest.mark.contract("T2")
@both_modes
@both_orders
async def test_a_loop_under_per_service_call_persistence_fires_once(stream: bool, history_first: bool) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient(call_tools_then_answer("guarded", 3))
    agent = Agent(
        client=client,
        tools=[guarded],
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=[AgentLoopMiddleware(iterate(2), max_iterations=None), auto_approve()],
        require_per_service_call_history_persistence=True,
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert client.calls == 5
    assert recorder.count == 1


@pytest.mark.contract("T2")
@both_modes
@both_orders
async def test_a_loop_without_a_session_fires_once(stream: bool, history_first: bool) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient()
    agent = Agent(
        client=client,
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=[AgentLoopMiddleware(iterate(3), max_iterations=None)],
    )

    await run_turn(agent, "task", stream=stream)

    assert client.calls == 3
    assert recorder.count == 1


# endregion
