# Copyright (c) Microsoft. All rights reserved.

"""``SessionContext.turn_state`` tells every ``after_run`` where the turn stands (T10)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agent_framework import (
    Agent,
    AgentContext,
    AgentLoopMiddleware,
    AgentMiddleware,
    AgentSession,
    Content,
    FunctionInvocationContext,
    InMemoryHistoryProvider,
    MiddlewareTermination,
    SessionContext,
    ToolApprovalMiddleware,
    WorkflowAgent,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    tool,
)

from ._turn_scope_helpers import (
    RunRecorder,
    ScriptedChatClient,
    SelfRunningAgent,
    SelfRunningAgentWithMiddleware,
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
)


@tool(approval_mode="never_require")
def lookup(number: int) -> str:
    """Look something up."""
    return f"finding {number}"


@tool(approval_mode="always_require")
def guarded(number: int) -> str:
    """Do something that needs an approval."""
    return f"did {number}"


class RecordingHistory(InMemoryHistoryProvider):
    """Records the turn state of every ``after_run``; under per-service-call persistence that is every service call."""

    def __init__(self) -> None:
        super().__init__()
        self.turn_states: list[str | None] = []

    async def after_run(
        self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        self.turn_states.append(getattr(context, "turn_state", None))
        await super().after_run(agent=agent, session=session, context=context, state=state)


class PassThrough(AgentMiddleware):
    """Does nothing, but nobody outside of it can know that."""

    async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
        await call_next()


def turn_states(recorder: RunRecorder) -> list[str | None]:
    return [call.turn_state for call in recorder.calls]


# region T10


@pytest.mark.contract("T10")
def test_the_default_is_closing() -> None:
    """Agents that build the context themselves and are their own turn need not know of it."""
    assert getattr(SessionContext(input_messages=[]), "turn_state", None) == "closing"


@pytest.mark.contract("T10")
@both_modes
@both_orders
async def test_the_only_run_of_a_plain_turn_is_closing(stream: bool, history_first: bool) -> None:
    run_scoped, turn_scoped = RunRecorder(), TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient(),
        context_providers=[run_scoped, *in_order(history_first, RecordingHistory(), turn_scoped)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert (turn_states(run_scoped), turn_states(turn_scoped)) == (["closing"], ["closing"])


@pytest.mark.contract("T10")
@both_modes
async def test_every_iteration_of_a_loop_is_open_and_its_boundary_closing(stream: bool) -> None:
    """The last iteration too: that it was the last is known only afterwards."""
    run_scoped, turn_scoped = RunRecorder(), TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient(),
        context_providers=[InMemoryHistoryProvider(), run_scoped, turn_scoped],
        middleware=[AgentLoopMiddleware(iterate(3), max_iterations=None)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert (turn_states(run_scoped), turn_states(turn_scoped)) == (["open"] * 3, ["closing"])


@pytest.mark.contract("T10")
@both_modes
async def test_a_run_inside_of_any_middleware_is_open(stream: bool) -> None:
    """Any agent middleware may run the agent again before the user gets control, whether or not it does."""
    run_scoped, turn_scoped = RunRecorder(), TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient(),
        context_providers=[InMemoryHistoryProvider(), run_scoped, turn_scoped],
        middleware=[PassThrough()],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert (turn_states(run_scoped), turn_states(turn_scoped)) == (["open"], ["closing"])


@pytest.mark.contract("T10")
@both_modes
async def test_a_run_that_is_followed_by_an_auto_approved_re_run_is_open(stream: bool) -> None:
    run_scoped, turn_scoped = RunRecorder(), TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient(call_tools_then_answer("guarded", 1)),
        tools=[guarded],
        context_providers=[InMemoryHistoryProvider(), run_scoped, turn_scoped],
        middleware=[ToolApprovalMiddleware(auto_approval_rules=[lambda function_call: True])],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert (turn_states(run_scoped), turn_states(turn_scoped)) == (["open", "open"], ["closing"])


@pytest.mark.contract("T10")
@pytest.mark.parametrize("in_a_loop", [False, True], ids=["no_loop", "loop"])
@both_modes
async def test_every_service_call_under_per_service_call_persistence_is_open(stream: bool, in_a_loop: bool) -> None:
    history, turn_scoped = RecordingHistory(), TurnRecorder()
    client = ScriptedChatClient(call_tools_then_answer("lookup", 2))
    agent = Agent(
        client=client,
        tools=[lookup],
        context_providers=[history, turn_scoped],
        middleware=[AgentLoopMiddleware(iterate(2), max_iterations=None)] if in_a_loop else None,
        require_per_service_call_history_persistence=True,
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert client.calls == (4 if in_a_loop else 3)
    assert (history.turn_states, turn_states(turn_scoped)) == (["open"] * client.calls, ["closing"])


@pytest.mark.contract("T10")
@pytest.mark.parametrize(
    "reply",
    [call_tool("guarded", "call-1", number=1), Content.from_oauth_consent_request(consent_link="https://example.com")],
    ids=["approval", "consent"],
)
@both_modes
async def test_a_plain_run_that_ends_waiting_is_paused(stream: bool, reply: Content) -> None:
    run_scoped = RunRecorder()
    agent = Agent(
        client=ScriptedChatClient([reply]),
        tools=[guarded],
        context_providers=[InMemoryHistoryProvider(), run_scoped, TurnRecorder()],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert turn_states(run_scoped) == ["paused"]


@pytest.mark.contract("T10")
@both_modes
async def test_the_plain_run_that_resolves_a_pause_is_closing(stream: bool) -> None:
    run_scoped, turn_scoped = RunRecorder(), TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient([call_tool("guarded", "call-1", number=1), "done"]),
        tools=[guarded],
        context_providers=[InMemoryHistoryProvider(), run_scoped, turn_scoped],
    )
    session = agent.create_session()

    paused = await run_turn(agent, "task", stream=stream, session=session)
    await run_turn(agent, answer_to(*requests_of(paused)), stream=stream, session=session)

    assert (turn_states(run_scoped), turn_states(turn_scoped)) == (["paused", "closing"], ["closing"])


@pytest.mark.contract("T10")
@both_modes
async def test_an_iteration_that_ends_waiting_is_open(stream: bool) -> None:
    """ "paused" is for a run with nothing around it: around this one a middleware may still answer the request."""
    run_scoped = RunRecorder()
    agent = Agent(
        client=ScriptedChatClient([call_tool("guarded", "call-1", number=1)]),
        tools=[guarded],
        context_providers=[InMemoryHistoryProvider(), run_scoped, TurnRecorder()],
        middleware=[AgentLoopMiddleware(iterate(3), max_iterations=None)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert turn_states(run_scoped) == ["open"]


@pytest.mark.contract("T10")
@both_modes
async def test_the_boundary_after_a_termination_is_closing(stream: bool) -> None:
    class TerminateAfter(AgentMiddleware):
        async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
            await call_next()
            raise MiddlewareTermination("that is enough")

    turn_scoped = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient(),
        context_providers=[InMemoryHistoryProvider(), turn_scoped],
        middleware=[TerminateAfter()],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert turn_states(turn_scoped) == ["closing"]


@pytest.mark.contract("T7")
@pytest.mark.contract("T10")
@pytest.mark.parametrize("same_session", [True, False], ids=["same_session", "another_session"])
@both_modes
async def test_a_nested_run_is_open_on_the_same_session_and_closing_on_another(
    stream: bool, same_session: bool
) -> None:
    """On the same session the nested run belongs to the turn around it, which goes on."""
    run_scoped = RunRecorder()
    inner = Agent(client=ScriptedChatClient(), context_providers=[InMemoryHistoryProvider("inner"), run_scoped])

    @tool(approval_mode="never_require")
    async def delegate(number: int, ctx: FunctionInvocationContext) -> str:
        """Ask the inner agent."""
        return (await inner.run("subtask", session=ctx.session if same_session else inner.create_session())).text

    agent = Agent(
        client=ScriptedChatClient(call_tools_then_answer("delegate", 1)),
        tools=[delegate],
        context_providers=[InMemoryHistoryProvider(), TurnRecorder()],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert turn_states(run_scoped) == ["open" if same_session else "closing"]


@pytest.mark.contract("T10")
@pytest.mark.parametrize("from_result_hook", [False, True], ids=["in_the_run", "in_a_result_hook"])
@both_modes
async def test_an_agent_with_its_own_run_loop_is_closing_alone_and_open_in_a_loop(
    stream: bool, from_result_hook: bool
) -> None:
    alone, looped = RunRecorder(), RunRecorder()
    agent = SelfRunningAgent(from_result_hook=from_result_hook, context_providers=[alone, TurnRecorder()])
    looped_agent = SelfRunningAgentWithMiddleware(
        from_result_hook=from_result_hook,
        context_providers=[looped, TurnRecorder()],
        middleware=[AgentLoopMiddleware(iterate(2), max_iterations=None)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())
    await run_turn(looped_agent, "task", stream=stream, session=looped_agent.create_session())

    assert (turn_states(alone), turn_states(looped)) == (["closing"], ["open", "open"])


@pytest.mark.contract("T10")
@both_modes
async def test_a_workflow_agent_is_closing(stream: bool) -> None:
    @executor(id="echo")
    async def echo(messages: list[Any], ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output("echo")

    run_scoped = RunRecorder()
    agent = WorkflowAgent(
        WorkflowBuilder(start_executor=echo, output_from=[echo]).build(), context_providers=[run_scoped, TurnRecorder()]
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert turn_states(run_scoped) == ["closing"]


@pytest.mark.contract("T10")
@both_modes
async def test_a_run_scoped_provider_that_saves_the_session_can_tell_a_finished_turn(stream: bool) -> None:
    """It saves at "paused" and "closing" and so never keeps a snapshot from the middle of a turn."""
    saved: list[dict[str, Any]] = []

    class Saver(RunRecorder):
        async def after_run(
            self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]
        ) -> None:
            if getattr(context, "turn_state", None) != "open":
                saved.append(session.to_dict())

    agent = Agent(
        client=ScriptedChatClient(),
        context_providers=[Saver("saver"), InMemoryHistoryProvider()],
        middleware=[AgentLoopMiddleware(iterate(3), max_iterations=None)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())
    in_the_loop = len(saved)
    agent.middleware = []
    await run_turn(agent, "another task", stream=stream, session=agent.create_session())

    assert (in_the_loop, len(saved)) == (0, 1)


# endregion
