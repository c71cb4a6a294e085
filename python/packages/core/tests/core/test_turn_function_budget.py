# Copyright (c) Microsoft. All rights reserved.

"""The function-invocation budget is one run's, not the turn's (T17)."""

from __future__ import annotations

from typing import Any

import pytest

from agent_framework import (
    Agent,
    AgentLoopMiddleware,
    Content,
    FunctionTool,
    InMemoryHistoryProvider,
    Message,
    ToolApprovalMiddleware,
    create_harness_agent,
    tool,
)

from ._turn_scope_helpers import (
    ScriptedChatClient,
    answer_to,
    both_modes,
    call_tool,
    iterate,
    requests_of,
    run_turn,
)


class Work:
    """A tool that counts the pieces of work that it was executed for.

    A piece that was executed twice counts once: that is not what the budget is about.
    """

    def __init__(self, *, needs_approval: bool = False) -> None:
        self._done: set[int] = set()

        @tool(name="work", approval_mode="always_require" if needs_approval else "never_require")
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
    """Asks for the tool in every model call in which it may."""

    def __init__(self, max_iterations: int) -> None:
        super().__init__(self._work_on)
        self.function_invocation_configuration["max_iterations"] = max_iterations

    def _work_on(self, call: int, messages: list[Message]) -> Content | str:
        if self.requests[-1].options.get("tool_choice") == "none":
            return "stopped"
        return call_tool("work", f"call-{call}", number=call)


def auto_approve() -> ToolApprovalMiddleware:
    return ToolApprovalMiddleware(auto_approval_rules=[lambda function_call: True])


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
@both_modes
async def test_a_run_and_its_resumption_after_a_pause_are_capped_together(stream: bool) -> None:
    work = Work(needs_approval=True)
    agent = Agent(
        client=RestlessClient(max_iterations=3),
        tools=[work.tool],
        context_providers=[InMemoryHistoryProvider()],
        middleware=[ToolApprovalMiddleware()],
    )
    session = agent.create_session()

    response: Any = await run_turn(agent, "task", stream=stream, session=session)
    resumptions = 0
    while (requests := requests_of(response)) and resumptions < 10:
        resumptions += 1
        response = await run_turn(agent, answer_to(*requests), stream=stream, session=session)

    assert response.messages[-1].text == "stopped"
    assert work.executed == 3


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
