# Copyright (c) Microsoft. All rights reserved.

"""The function-invocation budget is one run's, not the turn's (T17)."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
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
    Content,
    FunctionTool,
    InMemoryHistoryProvider,
    Message,
    ResponseStream,
    ToolApprovalMiddleware,
    create_harness_agent,
    tool,
)

from ._turn_scope_helpers import (
    Reply,
    ScriptedChatClient,
    answer_to,
    both_modes,
    call_tool,
    iterate,
    requests_of,
    run_turn,
    settle,
)


class Work:
    """A tool that counts the pieces of work that it was executed for.

    A piece that was executed twice counts once: that is not what the budget is about.
    """

    def __init__(self, *, needs_approval: bool = False, name: str = "work") -> None:
        self._done: set[int] = set()

        @tool(name=name, approval_mode="always_require" if needs_approval else "never_require")
        def work(number: int) -> str:
            """Do a piece of work."""
            self._done.add(number)
            return f"did {number}"

        self.tool: FunctionTool = work

    @property
    def executed(self) -> int:
        return len(self._done)


def call_then_answer(call: int, messages: list[Message]) -> Content | str:
    """One tool call a run."""
    return call_tool("work", f"call-{call}", number=call) if call % 2 else f"answer {call}"


class RestlessClient(ScriptedChatClient):
    """Asks for the tool in every model call in which it may, but for those that ``replies`` has an answer to."""

    def __init__(self, max_iterations: int, replies: Mapping[int, Reply] | None = None) -> None:
        super().__init__(self._work_on)
        self.function_invocation_configuration["max_iterations"] = max_iterations
        self._replies = replies or {}

    def _work_on(self, call: int, messages: list[Message]) -> Reply:
        if call in self._replies:
            return self._replies[call]
        if self.requests[-1].options.get("tool_choice") == "none":
            return "stopped"
        return call_tool("work", f"call-{call}", number=call)


def auto_approve() -> ToolApprovalMiddleware:
    return ToolApprovalMiddleware(auto_approval_rules=[lambda function_call: True])


class Attempts(AgentMiddleware):
    """Makes several attempts at the caller's messages, a stream's while the caller consumes the one it returns."""

    def __init__(self, attempts: int) -> None:
        self.attempts = attempts

    async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
        messages = list(context.messages)

        async def attempts() -> Any:
            for _ in range(self.attempts):
                context.messages = list(messages)
                await call_next()
                if isinstance(context.result, ResponseStream):
                    async for update in context.result:
                        yield update

        if context.stream:
            context.result = ResponseStream[AgentResponseUpdate, AgentResponse](
                attempts(), finalizer=AgentResponse.from_updates
            )
        else:
            async for _ in attempts():
                pass


# region T17: a loop of any length


@pytest.mark.contract("T17")
@both_modes
async def test_a_harness_loop_of_thirty_tool_iterations_executes_thirty_tools(stream: bool) -> None:
    work = Work()
    client = ScriptedChatClient(call_then_answer)
    agent = create_harness_agent(
        client,
        tools=[work.tool],
        loop_should_continue=iterate(30),
        loop_max_iterations=None,
        disable_file_memory=True,
        disable_web_search=True,
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert work.executed == 30


@pytest.mark.contract("T17")
@pytest.mark.parametrize("needs_approval", [False, True], ids=["no_approval", "auto_approved"])
@both_modes
async def test_a_loop_around_an_approval_middleware_keeps_executing_tools(stream: bool, needs_approval: bool) -> None:
    work = Work(needs_approval=needs_approval)
    agent = Agent(
        client=ScriptedChatClient(call_then_answer),
        tools=[work.tool],
        context_providers=[InMemoryHistoryProvider()],
        middleware=[AgentLoopMiddleware(iterate(30), max_iterations=None), auto_approve()],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert work.executed == 30


@pytest.mark.contract("T17")
@both_modes
async def test_a_loop_inside_of_an_approval_middleware_keeps_executing_tools(stream: bool) -> None:
    work = Work()
    agent = Agent(
        client=ScriptedChatClient(call_then_answer),
        tools=[work.tool],
        context_providers=[InMemoryHistoryProvider()],
        middleware=[auto_approve(), AgentLoopMiddleware(iterate(30), max_iterations=None)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert work.executed == 30


@pytest.mark.contract("T17")
@both_modes
async def test_a_loop_without_an_approval_middleware_keeps_executing_tools(stream: bool) -> None:
    """A guard, green without the turn scope too."""
    work = Work()
    agent = Agent(
        client=ScriptedChatClient(call_then_answer),
        tools=[work.tool],
        context_providers=[InMemoryHistoryProvider()],
        middleware=[AgentLoopMiddleware(iterate(30), max_iterations=None)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert work.executed == 30


# endregion
# region T17: a retry


@pytest.mark.contract("T17")
@pytest.mark.parametrize("outside", [True, False], ids=["around_the_approvals", "inside_of_the_approvals"])
@both_modes
async def test_every_attempt_of_a_retry_middleware_has_a_budget_of_its_own(stream: bool, outside: bool) -> None:
    work = Work()
    retry, approvals = Attempts(3), auto_approve()
    agent = Agent(
        client=RestlessClient(max_iterations=3),
        tools=[work.tool],
        context_providers=[InMemoryHistoryProvider()],
        middleware=[retry, approvals] if outside else [approvals, retry],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert work.executed == 9


# endregion
# region T17: one run stays capped


@pytest.mark.contract("T17")
@both_modes
async def test_a_run_is_capped(stream: bool) -> None:
    """A guard, green without the turn scope too."""
    work = Work()
    agent = Agent(client=RestlessClient(max_iterations=3), tools=[work.tool], middleware=[auto_approve()])

    response = await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert response.messages[-1].text == "stopped"
    assert work.executed == 3


@pytest.mark.contract("T17")
@both_modes
async def test_a_run_and_its_auto_approval_re_runs_are_capped_together(stream: bool) -> None:
    """A guard, green without the turn scope too."""
    work = Work(needs_approval=True)
    agent = Agent(client=RestlessClient(max_iterations=3), tools=[work.tool], middleware=[auto_approve()])

    response = await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert response.messages[-1].text == "stopped"
    assert work.executed == 3


@pytest.mark.contract("T17")
@both_modes
async def test_every_iteration_is_capped_on_its_own_together_with_its_re_runs(stream: bool) -> None:
    work = Work(needs_approval=True)
    agent = Agent(
        client=RestlessClient(max_iterations=3),
        tools=[work.tool],
        context_providers=[InMemoryHistoryProvider()],
        middleware=[AgentLoopMiddleware(iterate(2), max_iterations=None), auto_approve()],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert work.executed == 6


@pytest.mark.contract("T17")
@pytest.mark.parametrize("approval_middleware", [True, False], ids=["approval_middleware", "no_middleware"])
@pytest.mark.parametrize("stored", [False, True], ids=["kept", "stored"])
@both_modes
async def test_a_run_and_its_resumption_after_a_pause_are_capped_together(
    stream: bool, stored: bool, approval_middleware: bool
) -> None:
    work = Work(needs_approval=True)
    agent = Agent(
        client=RestlessClient(max_iterations=3),
        tools=[work.tool],
        context_providers=[InMemoryHistoryProvider()],
        middleware=[ToolApprovalMiddleware()] if approval_middleware else [],
    )
    session = agent.create_session()

    response: Any = await run_turn(agent, "task", stream=stream, session=session)
    resumptions = 0
    while (requests := requests_of(response)) and resumptions < 10:
        resumptions += 1
        if stored:
            session = AgentSession.from_dict(json.loads(json.dumps(session.to_dict())))
        response = await run_turn(agent, answer_to(*requests), stream=stream, session=session)

    assert response.messages[-1].text == "stopped"
    assert work.executed == 3


@pytest.mark.contract("T12")
@pytest.mark.contract("T17")
@pytest.mark.parametrize("approval_middleware", [True, False], ids=["approval_middleware", "no_middleware"])
@both_modes
async def test_a_pause_leaves_nothing_in_the_session_beside_its_approval_state(
    stream: bool, approval_middleware: bool
) -> None:
    """A host that stores approval state in a place of its own, as AG-UI does, finds the budget in it."""
    agent = Agent(
        client=RestlessClient(max_iterations=3),
        tools=[Work(needs_approval=True).tool],
        context_providers=[InMemoryHistoryProvider()],
        middleware=[ToolApprovalMiddleware()] if approval_middleware else [],
    )
    session = agent.create_session()

    paused = await run_turn(agent, "task", stream=stream, session=session)

    assert requests_of(paused)
    assert session.state.keys() <= {InMemoryHistoryProvider.DEFAULT_SOURCE_ID, "tool_approval"}


@pytest.mark.contract("T12")
@pytest.mark.contract("T17")
@both_modes
async def test_an_answered_pause_leaves_no_budget_behind(stream: bool) -> None:
    """A guard, green without the turn scope too."""
    agent = Agent(
        client=RestlessClient(40, {2: "done"}),
        tools=[Work(needs_approval=True).tool],
        context_providers=[InMemoryHistoryProvider()],
    )
    session = agent.create_session()

    paused = await run_turn(agent, "task", stream=stream, session=session)
    await run_turn(agent, answer_to(*requests_of(paused)), stream=stream, session=session)

    assert not session.state["tool_approval"]


@pytest.mark.contract("T17")
@both_modes
async def test_a_chat_client_with_a_session_still_takes_plain_text(stream: bool) -> None:
    """A guard, green without the turn scope too: whether a run resumes a pause is read from its input."""
    client = ScriptedChatClient(["answer 1"])
    kwargs: Any = {"client_kwargs": {"session": AgentSession()}}

    if stream:
        response = await client.get_response("task", stream=True, **kwargs).get_final_response()  # type: ignore[arg-type]
    else:
        response = await client.get_response("task", **kwargs)  # type: ignore[arg-type]

    assert response.text == "answer 1"


@pytest.mark.contract("T4")
@pytest.mark.contract("T17")
@pytest.mark.parametrize("where", ["no_middleware", "approvals", "loop_around_approvals"])
@both_modes
async def test_a_call_that_waited_for_its_approval_is_counted_once(stream: bool, where: str) -> None:
    """Not when it is asked for and again when it is executed."""
    work, guarded = Work(), Work(needs_approval=True, name="guarded")
    client = RestlessClient(40, {4: call_tool("guarded", "guarded-1", number=1)})
    client.function_invocation_configuration["max_function_calls"] = 6
    agent = Agent(
        client=client,
        tools=[work.tool, guarded.tool],
        context_providers=[InMemoryHistoryProvider()],
        middleware={
            "no_middleware": [],
            "approvals": [ToolApprovalMiddleware()],
            "loop_around_approvals": [AgentLoopMiddleware(iterate(1), max_iterations=None), ToolApprovalMiddleware()],
        }[where],
    )
    session = agent.create_session()

    paused = await run_turn(agent, "task", stream=stream, session=session)
    await run_turn(agent, answer_to(*requests_of(paused)), stream=stream, session=session)

    assert (work.executed, guarded.executed) == (5, 1)


@pytest.mark.contract("T4")
@pytest.mark.contract("T17")
@both_modes
async def test_calls_that_waited_for_approvals_in_a_queue_are_counted_once(stream: bool) -> None:
    """A guard, green without the turn scope too: the user sees one request at a time."""
    work, guarded = Work(), Work(needs_approval=True, name="guarded")
    client = RestlessClient(40, {1: [call_tool("guarded", f"guarded-{n}", number=n) for n in (1, 2, 3)]})
    client.function_invocation_configuration["max_function_calls"] = 6
    agent = Agent(
        client=client,
        tools=[work.tool, guarded.tool],
        context_providers=[InMemoryHistoryProvider()],
        middleware=[ToolApprovalMiddleware()],
    )
    session = agent.create_session()

    response = await run_turn(agent, "task", stream=stream, session=session)
    for _ in range(3):
        response = await run_turn(agent, answer_to(*requests_of(response)), stream=stream, session=session)

    assert (work.executed, guarded.executed) == (3, 3)


@pytest.mark.contract("T17")
@both_modes
async def test_a_turn_that_failed_leaves_no_used_up_budget_behind(stream: bool) -> None:
    work = Work()
    agent = Agent(
        client=RestlessClient(3, {3: RuntimeError("model down")}),
        tools=[work.tool],
        context_providers=[InMemoryHistoryProvider()],
        middleware=[ToolApprovalMiddleware()],
    )
    session = agent.create_session()

    with pytest.raises(RuntimeError, match="model down"):
        await run_turn(agent, "task", stream=stream, session=session)
    before_the_next_turn = work.executed
    await run_turn(agent, "another task", stream=stream, session=session)

    assert (before_the_next_turn, work.executed - before_the_next_turn) == (2, 3)


@pytest.mark.contract("T17")
@pytest.mark.parametrize(
    "abandon", ["let_go", *[method for method in ("close", "aclose") if hasattr(ResponseStream, method)]]
)
async def test_a_turn_that_was_abandoned_leaves_no_used_up_budget_behind(abandon: str) -> None:
    work = Work()
    agent = Agent(
        client=RestlessClient(max_iterations=3),
        tools=[work.tool],
        context_providers=[InMemoryHistoryProvider()],
        middleware=[ToolApprovalMiddleware()],
    )
    session = agent.create_session()

    response_stream: Any = agent.run("task", stream=True, session=session)
    async for _ in response_stream:
        if work.executed == 2:
            break
    if abandon != "let_go":
        await getattr(response_stream, abandon)()
    del response_stream
    await settle()
    before_the_next_turn = work.executed
    await run_turn(agent, "another task", stream=False, session=session)

    assert (before_the_next_turn, work.executed - before_the_next_turn) == (2, 3)


@pytest.mark.contract("T17")
@both_modes
async def test_the_next_turn_has_a_budget_of_its_own(stream: bool) -> None:
    """A guard, green without the turn scope too."""
    work = Work(needs_approval=True)
    agent = Agent(
        client=RestlessClient(max_iterations=3),
        tools=[work.tool],
        context_providers=[InMemoryHistoryProvider()],
        middleware=[auto_approve()],
    )
    session = agent.create_session()

    await run_turn(agent, "task", stream=stream, session=session)
    await run_turn(agent, "another task", stream=stream, session=session)

    assert work.executed == 6


# endregion
