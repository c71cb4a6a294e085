# Copyright (c) Microsoft. All rights reserved.

"""A nested run on the same session belongs to the outer turn; any other run is a turn of its own (T7)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agent_framework import (
    Agent,
    AgentContext,
    AgentLoopMiddleware,
    AgentMiddleware,
    AgentSession,
    BaseAgent,
    CompactionProvider,
    ContextProvider,
    FunctionInvocationContext,
    FunctionTool,
    InMemoryHistoryProvider,
    Message,
    SessionContext,
    tool,
)

from ._turn_scope_helpers import (
    ScriptedChatClient,
    SelfRunningAgent,
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
    texts,
)


class MarkingRecorder(TurnRecorder):
    """Leaves a mark in the state that it is given, too."""

    async def after_run(
        self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        state["fired"] = state.get("fired", 0) + 1
        await super().after_run(agent=agent, session=session, context=context, state=state)


@tool(approval_mode="always_require")
def guarded(number: int) -> str:
    """Do something that needs an approval."""
    return f"did {number}"


def delegate_to(inner: BaseAgent, which_session: str = "same", *, stream: bool = False) -> FunctionTool:
    """A tool that runs ``inner`` on the session of its caller, on another one, or on none."""

    @tool(name="delegate", approval_mode="never_require")
    async def delegate(number: int, ctx: FunctionInvocationContext) -> str:
        """Ask the inner agent."""
        session = {"same": ctx.session, "another": inner.create_session(), "none": None}[which_session]
        return (await run_turn(inner, f"subtask {number}", stream=stream, session=session)).text

    return delegate


def inner_agent(*providers: ContextProvider, **kwargs: Any) -> Agent:
    return Agent(
        client=ScriptedChatClient(["inner answer"]),
        name="inner",
        context_providers=[InMemoryHistoryProvider("inner_history"), *providers],
        **kwargs,
    )


def outer_agent(client: ScriptedChatClient, *tools: Any, providers: Any = (), **kwargs: Any) -> Agent:
    return Agent(client=client, tools=list(tools), context_providers=[InMemoryHistoryProvider(), *providers], **kwargs)


def counting_script(name: str, times: int, recorder: TurnRecorder, fired: list[int]) -> Callable[..., Any]:
    """Asks for the tool ``times`` times and notes at every model call how often the recorder has fired."""

    def script(call: int, messages: list[Message]) -> Any:
        fired.append(recorder.count)
        return call_tools_then_answer(name, times)(call, messages)

    return script


# region T7: on the same session


@pytest.mark.contract("T7")
@pytest.mark.parametrize("inner_streams", [False, True], ids=["inner_non_streaming", "inner_streaming"])
@both_modes
async def test_the_run_of_a_tool_waits_for_the_outer_boundary(stream: bool, inner_streams: bool) -> None:
    recorder = TurnRecorder("inner_recorder")
    fired: list[int] = []
    agent = outer_agent(
        ScriptedChatClient(counting_script("delegate", 2, recorder, fired)),
        delegate_to(inner_agent(recorder), stream=inner_streams),
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert fired == [0, 0, 0]
    assert recorder.count == 1


@pytest.mark.contract("T7")
@pytest.mark.parametrize("per_service_call", [False, True], ids=["per_run", "per_service_call"])
@both_modes
async def test_an_agent_as_a_tool_with_the_session_waits_for_the_outer_boundary(
    stream: bool, per_service_call: bool
) -> None:
    """``as_tool`` gives the child a session object of its own with the same ``session_id``: the same session, then."""
    recorder = TurnRecorder("inner_recorder")
    fired: list[int] = []
    inner = inner_agent(recorder, require_per_service_call_history_persistence=per_service_call)
    agent = outer_agent(
        ScriptedChatClient(
            lambda call, messages: (
                fired.append(recorder.count) or call_tool("inner", f"call-{call}", task="subtask")
                if call < 3
                else "done"
            )
        ),
        inner.as_tool(propagate_session=True),
        require_per_service_call_history_persistence=per_service_call,
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert fired == [0, 0]
    assert recorder.count == 1


@pytest.mark.contract("T7")
@both_modes
@both_orders
async def test_the_outer_agent_goes_on_seeing_its_task_after_a_nested_run(stream: bool, history_first: bool) -> None:
    """Parent and child share the history; the child's compaction must not exclude what the parent is working on."""

    async def exclude_everything(messages: list[Message]) -> bool:
        for message in messages:
            message.additional_properties["_excluded"] = True
        return True

    def providers() -> list[ContextProvider]:
        return in_order(
            history_first,
            InMemoryHistoryProvider(skip_excluded=True),
            CompactionProvider(after_strategy=exclude_everything),
        )

    inner = Agent(
        client=ScriptedChatClient(["inner answer"]),
        name="inner",
        context_providers=providers(),
        require_per_service_call_history_persistence=True,
    )
    client = ScriptedChatClient([call_tool("inner", "call-1", task="subtask"), "done"])
    agent = Agent(
        client=client,
        tools=[inner.as_tool(propagate_session=True)],
        context_providers=providers(),
        require_per_service_call_history_persistence=True,
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert "task" in texts(client.requests[1].messages)


@pytest.mark.contract("T7")
@pytest.mark.parametrize("as_tool", [False, True], ids=["tool", "as_tool"])
@both_modes
async def test_a_nested_provider_fires_against_the_state_of_the_outer_session(stream: bool, as_tool: bool) -> None:
    recorder = MarkingRecorder("inner_recorder")
    inner = inner_agent(recorder)
    agent = outer_agent(
        ScriptedChatClient([
            call_tool("inner", "call-1", task="subtask") if as_tool else call_tool("delegate", "call-1", number=1),
            "done",
        ]),
        inner.as_tool(propagate_session=True) if as_tool else delegate_to(inner),
        providers=[TurnRecorder()],
    )
    session = agent.create_session()

    await run_turn(agent, "task", stream=stream, session=session)

    assert recorder.boundary.session.session_id == session.session_id
    assert session.state["inner_recorder"] == {"fired": 1}


@pytest.mark.contract("T7")
@both_modes
async def test_a_nested_boundary_sees_what_the_outer_turn_persisted(stream: bool) -> None:
    """It is the outer boundary: every run of the turn has been stored by then."""
    recorder = TurnRecorder("inner_recorder")
    agent = outer_agent(
        ScriptedChatClient([call_tool("delegate", "call-1", number=1), "done"]), delegate_to(inner_agent(recorder))
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert recorder.boundary.stored_texts == ["task", "done"]


@pytest.mark.contract("T7")
@pytest.mark.contract("T9")
@both_modes
async def test_a_nested_boundary_has_the_messages_of_the_nested_run(stream: bool) -> None:
    """The nested run is one of the runs that the caller's ``agent.run`` set off, so its messages are in the response.

    Whether the outer agent's own messages are there too, and the nested ones in what its providers see, is left open.
    """
    recorder = TurnRecorder("inner_recorder")
    agent = outer_agent(
        ScriptedChatClient([call_tool("delegate", "call-1", number=1), "done"]), delegate_to(inner_agent(recorder))
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert "inner answer" in recorder.boundary.answers


@pytest.mark.contract("T7")
@both_modes
async def test_a_run_nested_twice_waits_for_the_outermost_boundary(stream: bool) -> None:
    recorder = TurnRecorder("innermost_recorder")
    fired: list[int] = []
    innermost = inner_agent(recorder)
    middle = Agent(
        client=ScriptedChatClient(counting_script("delegate", 1, recorder, fired)),
        tools=[delegate_to(innermost)],
        context_providers=[InMemoryHistoryProvider("middle_history")],
    )
    agent = outer_agent(ScriptedChatClient(counting_script("delegate", 1, recorder, fired)), delegate_to(middle))

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert fired == [0, 0, 0, 0]
    assert recorder.count == 1


@pytest.mark.contract("T7")
@both_modes
async def test_a_run_that_comes_back_to_the_outer_session_belongs_to_the_outer_turn(stream: bool) -> None:
    """In between is a run on another session; the outer one is in the same call tree all the same."""
    recorder = TurnRecorder("innermost_recorder")
    fired: list[int] = []
    innermost = inner_agent(recorder)
    sessions: list[AgentSession] = []

    @tool(name="delegate", approval_mode="never_require")
    async def come_back(number: int) -> str:
        """Ask the innermost agent on the outermost session."""
        return (await innermost.run("subtask", session=sessions[0])).text

    middle = Agent(
        client=ScriptedChatClient(counting_script("delegate", 1, recorder, fired)),
        tools=[come_back],
        context_providers=[InMemoryHistoryProvider("middle_history")],
    )
    agent = outer_agent(
        ScriptedChatClient(counting_script("delegate", 1, recorder, fired)), delegate_to(middle, "another")
    )
    sessions.append(agent.create_session())

    await run_turn(agent, "task", stream=stream, session=sessions[0])

    assert fired == [0, 0, 0, 0]
    assert recorder.count == 1


@pytest.mark.contract("T7")
@both_modes
async def test_a_nested_run_on_the_session_that_the_outer_run_was_given_by_the_framework_waits(stream: bool) -> None:
    """The caller passed no session, so the run made one, and its tools get that."""
    recorder = TurnRecorder("inner_recorder")
    fired: list[int] = []
    agent = outer_agent(
        ScriptedChatClient(counting_script("delegate", 1, recorder, fired)), delegate_to(inner_agent(recorder))
    )

    await run_turn(agent, "task", stream=stream)

    assert fired == [0, 0]
    assert recorder.count == 1


@pytest.mark.contract("T7")
@both_modes
async def test_a_nested_run_on_the_session_that_a_middleware_swapped_in_waits(stream: bool) -> None:
    other = AgentSession(session_id="swapped in")

    class SwapSession(AgentMiddleware):
        async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
            context.session = other
            await call_next()

    recorder = TurnRecorder("inner_recorder")
    fired: list[int] = []
    agent = outer_agent(
        ScriptedChatClient(counting_script("delegate", 1, recorder, fired)),
        delegate_to(inner_agent(recorder)),
        middleware=[SwapSession()],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert fired == [0, 0]
    assert recorder.count == 1


@pytest.mark.contract("T7")
@pytest.mark.contract("T15")
@both_modes
async def test_the_error_of_a_nested_provider_reaches_the_outer_caller(stream: bool) -> None:
    """It is raised at the outer boundary, not into the tool that ran the nested agent."""
    error = RuntimeError("boom")
    recorder, outer_recorder = TurnRecorder("inner_recorder", error=error), TurnRecorder("outer_recorder")
    client = ScriptedChatClient(call_tools_then_answer("delegate", 1))
    agent = outer_agent(client, delegate_to(inner_agent(recorder)), providers=[outer_recorder])

    with pytest.raises(RuntimeError) as raised:
        await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert raised.value is error
    assert (client.calls, recorder.count, outer_recorder.count) == (2, 1, 1)


@pytest.mark.contract("T7")
@both_modes
async def test_the_outer_and_the_nested_provider_fire_once_each(stream: bool) -> None:
    outer_recorder, inner_recorder = TurnRecorder("outer_recorder"), TurnRecorder("inner_recorder")
    agent = outer_agent(
        ScriptedChatClient(call_tools_then_answer("delegate", 1)),
        delegate_to(inner_agent(inner_recorder)),
        providers=[outer_recorder],
        middleware=[AgentLoopMiddleware(iterate(2), max_iterations=None)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert (outer_recorder.count, inner_recorder.count) == (1, 1)


@pytest.mark.contract("T7")
@both_modes
async def test_a_provider_that_both_agents_have_fires_once(stream: bool) -> None:
    """One provider, one turn, one session: the one ``after_run`` of T1."""
    shared = TurnRecorder("shared")
    agent = outer_agent(
        ScriptedChatClient([call_tool("delegate", "call-1", number=1), "done"]),
        delegate_to(inner_agent(shared)),
        providers=[shared],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert shared.count == 1


@pytest.mark.contract("T7")
@both_modes
async def test_parallel_nested_runs_fire_once(stream: bool) -> None:
    """The function-calling loop runs the calls of one response in tasks of their own."""
    recorder = TurnRecorder("inner_recorder")
    fired: list[int] = []

    def script(call: int, messages: list[Message]) -> Any:
        fired.append(recorder.count)
        return [call_tool("delegate", f"call-{number}", number=number) for number in (1, 2, 3)] if call == 1 else "done"

    agent = outer_agent(ScriptedChatClient(script), delegate_to(inner_agent(recorder)))

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert fired == [0, 0]
    assert recorder.count == 1


@pytest.mark.contract("T7")
@both_modes
async def test_a_nested_loop_fires_once_at_the_outer_boundary(stream: bool) -> None:
    recorder = TurnRecorder("inner_recorder")
    fired: list[int] = []
    inner = inner_agent(recorder, middleware=[AgentLoopMiddleware(iterate(3), max_iterations=None)])
    agent = outer_agent(ScriptedChatClient(counting_script("delegate", 1, recorder, fired)), delegate_to(inner))

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert fired == [0, 0]
    assert recorder.count == 1


@pytest.mark.contract("T7")
@both_modes
async def test_a_nested_agent_with_its_own_run_loop_waits_for_the_outer_boundary(stream: bool) -> None:
    recorder = TurnRecorder("inner_recorder")
    fired: list[int] = []
    inner = SelfRunningAgent(context_providers=[InMemoryHistoryProvider("inner_history"), recorder])
    agent = outer_agent(ScriptedChatClient(counting_script("delegate", 1, recorder, fired)), delegate_to(inner))

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert fired == [0, 0]
    assert recorder.count == 1


@pytest.mark.contract("T7")
@both_modes
async def test_a_run_that_a_middleware_makes_on_the_same_session_waits_for_the_outer_boundary(stream: bool) -> None:
    recorder = TurnRecorder("inner_recorder")
    inner = inner_agent(recorder)
    fired: list[int] = []

    class AskFirst(AgentMiddleware):
        async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
            await inner.run("what do you think?", session=context.session)
            fired.append(recorder.count)
            await call_next()

    agent = outer_agent(ScriptedChatClient(), middleware=[AskFirst()])

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert fired == [0]
    assert recorder.count == 1


@pytest.mark.contract("T7")
@both_modes
async def test_a_nested_run_does_not_fire_when_the_outer_turn_fails(stream: bool) -> None:
    recorder = TurnRecorder("inner_recorder")
    agent = outer_agent(
        ScriptedChatClient([call_tool("delegate", "call-1", number=1), RuntimeError("boom")]),
        delegate_to(inner_agent(recorder)),
    )

    with pytest.raises(RuntimeError, match="boom"):
        await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert recorder.count == 0


@pytest.mark.contract("T7")
@both_modes
async def test_a_nested_run_does_not_fire_when_the_outer_turn_pauses(stream: bool) -> None:
    """What becomes of it when the pause is resolved, perhaps in another process, is left open."""
    recorder = TurnRecorder("inner_recorder")
    outer_recorder = TurnRecorder("outer_recorder")
    agent = outer_agent(
        ScriptedChatClient([
            call_tool("delegate", "call-1", number=1),
            call_tool("guarded", "call-2", number=2),
            "done",
        ]),
        delegate_to(inner_agent(recorder)),
        guarded,
        providers=[outer_recorder],
    )
    session = agent.create_session()

    paused = await run_turn(agent, "task", stream=stream, session=session)
    at_the_pause = (recorder.count, outer_recorder.count)
    await run_turn(agent, answer_to(*requests_of(paused)), stream=stream, session=session)

    assert at_the_pause == (0, 0)
    assert outer_recorder.count == 1


@pytest.mark.contract("T7")
@pytest.mark.parametrize("inner_streams", [False, True], ids=["inner_non_streaming", "inner_streaming"])
@both_modes
async def test_a_nested_run_that_pauses_while_the_outer_goes_on_fires_at_the_outer_boundary(
    stream: bool, inner_streams: bool
) -> None:
    """The tool makes something of what the nested run asks for, so nobody waits for it: the turn goes on and ends."""
    recorder = TurnRecorder("inner_recorder")
    fired: list[int] = []
    inner = Agent(
        client=ScriptedChatClient([call_tool("guarded", "pending-1", number=1)]),
        tools=[guarded],
        context_providers=[InMemoryHistoryProvider("inner_history"), recorder],
    )
    agent = outer_agent(
        ScriptedChatClient(counting_script("delegate", 1, recorder, fired)), delegate_to(inner, stream=inner_streams)
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert fired == [0, 0]
    assert recorder.count == 1


# endregion
# region T7: on another session, and alone


@pytest.mark.contract("T7")
@pytest.mark.parametrize("which_session", ["another", "none"])
@pytest.mark.parametrize("in_a_loop", [False, True], ids=["no_loop", "loop"])
@both_modes
async def test_a_nested_run_on_another_session_is_a_turn_of_its_own(
    stream: bool, in_a_loop: bool, which_session: str
) -> None:
    recorder = TurnRecorder("inner_recorder")
    fired: list[int] = []
    agent = outer_agent(
        ScriptedChatClient(counting_script("delegate", 2, recorder, fired)),
        delegate_to(inner_agent(recorder), which_session),
        middleware=[AgentLoopMiddleware(iterate(2), max_iterations=None)] if in_a_loop else None,
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert fired[:3] == [0, 1, 2]
    assert recorder.count == 2


@pytest.mark.contract("T7")
@both_modes
async def test_an_agent_as_a_tool_without_the_session_is_a_turn_of_its_own(stream: bool) -> None:
    recorder = TurnRecorder("inner_recorder")
    fired: list[int] = []

    def script(call: int, messages: list[Message]) -> Any:
        fired.append(recorder.count)
        return call_tool("inner", f"call-{call}", task="subtask") if call < 3 else "done"

    agent = outer_agent(ScriptedChatClient(script), inner_agent(recorder).as_tool())

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert fired == [0, 1, 2]


@pytest.mark.contract("T7")
@both_modes
async def test_a_nested_agent_with_its_own_run_loop_on_another_session_is_a_turn_of_its_own(stream: bool) -> None:
    recorder = TurnRecorder("inner_recorder")
    fired: list[int] = []
    inner = SelfRunningAgent(context_providers=[InMemoryHistoryProvider("inner_history"), recorder])
    agent = outer_agent(
        ScriptedChatClient(counting_script("delegate", 1, recorder, fired)), delegate_to(inner, "another")
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert fired == [0, 1]


@pytest.mark.contract("T7")
@both_modes
async def test_three_concurrent_runs_on_three_sessions_are_three_turns(stream: bool) -> None:
    recorder = TurnRecorder()
    waiting = asyncio.Barrier(3) if hasattr(asyncio, "Barrier") else None

    async def script(call: int, messages: list[Message]) -> str:
        if waiting is not None:
            await waiting.wait()
        else:
            await asyncio.sleep(0)
        return f"answer to {messages[0].text}"

    agent = Agent(
        client=ScriptedChatClient(script),
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[AgentLoopMiddleware(iterate(2), max_iterations=None)],
    )
    sessions = [agent.create_session() for _ in range(3)]

    await asyncio.gather(
        *(
            run_turn(agent, f"task {number}", stream=stream, session=session)
            for number, session in enumerate(sessions, start=1)
        )
    )

    assert sorted((call.input_texts[0], call.answers[0]) for call in recorder.calls) == [
        ("task 1", "answer to task 1"),
        ("task 2", "answer to task 2"),
        ("task 3", "answer to task 3"),
    ]
    assert {id(call.session) for call in recorder.calls} == {id(session) for session in sessions}


@pytest.mark.contract("T7")
@both_modes
async def test_two_runs_of_the_caller_on_one_session_are_two_turns(stream: bool) -> None:
    """One call tree each, although they overlap and the session is the same."""
    first_is_running, first_may_end = asyncio.Event(), asyncio.Event()
    recorder = TurnRecorder()

    async def script(call: int, messages: list[Message]) -> str:
        if call == 1:
            first_is_running.set()
            await first_may_end.wait()
        return f"answer {call}"

    agent = Agent(client=ScriptedChatClient(script), context_providers=[InMemoryHistoryProvider(), recorder])
    session = agent.create_session()

    first = asyncio.create_task(run_turn(agent, "first", stream=stream, session=session))
    await first_is_running.wait()
    await run_turn(agent, "second", stream=stream, session=session)
    after_the_second = [call.input_texts for call in recorder.calls]
    first_may_end.set()
    await first

    assert after_the_second == [["second"]]
    assert [call.input_texts for call in recorder.calls] == [["second"], ["first"]]


# endregion
# region T7: background tasks


def background_tool(inner: BaseAgent, tasks: list[asyncio.Task[Any]], started: asyncio.Event) -> FunctionTool:
    """A tool that starts ``inner`` on the session of its caller and does not wait for it."""

    @tool(name="delegate", approval_mode="never_require")
    async def delegate(number: int, ctx: FunctionInvocationContext) -> str:
        """Start the inner agent."""
        tasks.append(asyncio.create_task(inner.run(f"subtask {number}", session=ctx.session)))  # type: ignore[attr-defined]
        await started.wait()
        return "started"

    return delegate


@pytest.mark.contract("T7")
@both_modes
async def test_a_run_that_outlives_the_outer_turn_is_a_turn_of_its_own(stream: bool) -> None:
    started, may_end = asyncio.Event(), asyncio.Event()
    tasks: list[asyncio.Task[Any]] = []
    outer_recorder, inner_recorder = TurnRecorder("outer_recorder"), TurnRecorder("inner_recorder")

    async def answer_later(call: int, messages: list[Message]) -> str:
        started.set()
        await may_end.wait()
        return "inner answer"

    inner = Agent(
        client=ScriptedChatClient(answer_later),
        context_providers=[InMemoryHistoryProvider("inner_history"), inner_recorder],
    )
    agent = outer_agent(
        ScriptedChatClient(call_tools_then_answer("delegate", 1)),
        background_tool(inner, tasks, started),
        providers=[outer_recorder],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())
    at_the_outer_boundary = (outer_recorder.count, inner_recorder.count)
    may_end.set()
    await asyncio.gather(*tasks)

    assert at_the_outer_boundary == (1, 0)
    assert (outer_recorder.count, inner_recorder.count) == (1, 1)


@pytest.mark.contract("T7")
@both_modes
async def test_a_stream_that_a_turn_leaves_to_its_caller_is_a_turn_of_its_own(stream: bool) -> None:
    """Made inside of the outer turn, consumed after it."""
    recorder = TurnRecorder("inner_recorder")
    inner = inner_agent(recorder)
    left: list[Any] = []

    @tool(name="delegate", approval_mode="never_require")
    async def start(number: int, ctx: FunctionInvocationContext) -> str:
        """Start the inner agent and leave its stream to the caller."""
        left.append(inner.run("subtask", stream=True, session=ctx.session))
        return "started"

    agent = outer_agent(ScriptedChatClient(call_tools_then_answer("delegate", 1)), start)

    await run_turn(agent, "task", stream=stream, session=agent.create_session())
    at_the_outer_boundary = recorder.count
    await left[0].get_final_response()

    assert (at_the_outer_boundary, recorder.count) == (0, 1)


@pytest.mark.contract("T7")
@both_modes
async def test_a_background_run_that_ends_in_time_belongs_to_the_outer_turn(stream: bool) -> None:
    started = asyncio.Event()
    tasks: list[asyncio.Task[Any]] = []
    recorder = TurnRecorder("inner_recorder")
    fired: list[int] = []

    def answer(call: int, messages: list[Message]) -> str:
        started.set()
        return "inner answer"

    async def script(call: int, messages: list[Message]) -> Any:
        if call == 2:
            await asyncio.gather(*tasks)
            fired.append(recorder.count)
        return call_tools_then_answer("delegate", 1)(call, messages)

    inner = Agent(
        client=ScriptedChatClient(answer), context_providers=[InMemoryHistoryProvider("inner_history"), recorder]
    )
    agent = outer_agent(ScriptedChatClient(script), background_tool(inner, tasks, started))

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert fired == [0]
    assert recorder.count == 1


# endregion
