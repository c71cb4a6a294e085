# Copyright (c) Microsoft. All rights reserved.

"""What the boundary sees: the ``SessionContext`` of the whole turn (T9)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agent_framework import (
    Agent,
    AgentContext,
    AgentLoopMiddleware,
    AgentMiddleware,
    AgentSession,
    ContextProvider,
    InMemoryHistoryProvider,
    Message,
    ResponseStream,
    SessionContext,
    ToolApprovalMiddleware,
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
    texts,
)


@tool(approval_mode="never_require")
def lookup(number: int) -> str:
    """Look something up."""
    return f"finding {number}"


@tool(approval_mode="always_require")
def guarded(number: int) -> str:
    """Do something that needs an approval."""
    return f"did {number}"


class NumberedContext(ContextProvider):
    """Adds instructions, a tool, a message and metadata that say which run they belong to."""

    def __init__(self) -> None:
        super().__init__("numbered")
        self.runs = 0

    async def before_run(
        self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        self.runs += 1
        number = self.runs

        @tool(name=f"tool_of_run_{number}", approval_mode="never_require")
        def numbered() -> str:
            """Do nothing."""
            return ""

        context.extend_instructions(self.source_id, f"instructions of run {number}")
        context.extend_tools(self.source_id, [numbered])
        context.extend_messages(self, [Message(role="user", contents=[f"context of run {number}"])])
        context.metadata["run"] = number


def looped(client: ScriptedChatClient, providers: list[ContextProvider], times: int = 3, **kwargs: Any) -> Agent:
    loop = AgentLoopMiddleware(
        iterate(times),
        max_iterations=None,
        next_message=lambda **_: "go on",
        return_final_only=kwargs.pop("return_final_only", False),
    )
    return Agent(client=client, context_providers=providers, middleware=[loop], **kwargs)


# region T9: the messages


@pytest.mark.contract("T9")
@both_modes
@both_orders
async def test_the_input_messages_are_the_callers(stream: bool, history_first: bool) -> None:
    """Not the nudge of the last iteration."""
    recorder = TurnRecorder()
    agent = looped(ScriptedChatClient(), in_order(history_first, InMemoryHistoryProvider(), recorder))

    await run_turn(agent, ["task", "and more"], stream=stream, session=agent.create_session())

    assert recorder.boundary.input_texts == ["task", "and more"]


@pytest.mark.contract("T9")
@both_modes
async def test_the_input_messages_are_without_what_a_middleware_added(stream: bool) -> None:
    """The judge puts its criteria in front of the input; the caller did not say that."""
    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient(),
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[AgentLoopMiddleware.with_judge(ScriptedChatClient(["VERDICT: DONE"]), criteria=["be brief"])],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert recorder.boundary.input_texts == ["task"]


@pytest.mark.contract("T9")
@pytest.mark.parametrize("in_a_loop", [False, True], ids=["no_loop", "loop"])
@both_modes
async def test_the_input_messages_of_an_agent_with_its_own_run_loop_are_the_callers(
    stream: bool, in_a_loop: bool
) -> None:
    """Without what a provider put into the context of its run."""

    class AddInput(ContextProvider):
        async def before_run(
            self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]
        ) -> None:
            context.input_messages.append(Message(role="user", contents=["added by a provider"]))

    recorder = TurnRecorder()
    agent = SelfRunningAgentWithMiddleware(
        context_providers=[AddInput("add_input"), recorder],
        middleware=[AgentLoopMiddleware(iterate(2), max_iterations=None)] if in_a_loop else None,
    )

    await run_turn(agent, ["task", "and more"], stream=stream, session=agent.create_session())

    assert recorder.boundary.input_texts == ["task", "and more"]


@pytest.mark.contract("T9")
@both_modes
@both_orders
async def test_the_response_has_every_iteration(stream: bool, history_first: bool) -> None:
    """Every run's own messages, in order; whether the nudges between them are in it too is left open."""
    recorder = TurnRecorder()
    agent = looped(
        ScriptedChatClient(["answer 1", "answer 2", "answer 3"]),
        in_order(history_first, InMemoryHistoryProvider(), recorder),
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert recorder.boundary.answers == ["answer 1", "answer 2", "answer 3"]


@pytest.mark.contract("T9")
@both_modes
async def test_the_response_has_every_iteration_even_if_the_caller_gets_the_last(stream: bool) -> None:
    recorder = TurnRecorder()
    agent = looped(
        ScriptedChatClient(["answer 1", "answer 2", "answer 3"]),
        [InMemoryHistoryProvider(), recorder],
        return_final_only=True,
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert recorder.boundary.answers == ["answer 1", "answer 2", "answer 3"]


@pytest.mark.contract("T9")
@both_modes
async def test_the_response_has_the_iterations_of_stacked_loops(stream: bool) -> None:
    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient(["answer 1", "answer 2", "answer 3", "answer 4"]),
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[
            AgentLoopMiddleware(iterate(2), max_iterations=None),
            AgentLoopMiddleware(iterate(2), max_iterations=None),
        ],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert recorder.boundary.answers == ["answer 1", "answer 2", "answer 3", "answer 4"]


@pytest.mark.contract("T9")
@both_modes
async def test_the_response_has_every_attempt_of_a_retry_middleware(stream: bool) -> None:
    """Literally every run's messages: the attempt that the retry threw away was persisted too."""

    class RetryOnce(AgentMiddleware):
        async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
            await call_next()
            if isinstance(context.result, ResponseStream):
                await context.result.get_final_response()
            await call_next()

    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient(["first attempt", "second attempt"]),
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[RetryOnce()],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert recorder.boundary.answers == ["first attempt", "second attempt"]


@pytest.mark.contract("T9")
@both_modes
async def test_the_response_has_the_tool_calls_and_results_of_every_iteration(stream: bool) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient(
        lambda call, messages: (
            call_tools_then_answer("lookup", 99)(call, messages) if call % 2 else f"answer {call // 2}"
        )
    )
    agent = looped(client, [InMemoryHistoryProvider(), recorder], tools=[lookup])

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    response = recorder.boundary.response
    assert response is not None
    contents = [content for message in response.messages for content in message.contents]
    call_ids = ["call-1", "call-3", "call-5"]
    assert [content.call_id for content in contents if content.type == "function_call"] == call_ids
    assert [content.call_id for content in contents if content.type == "function_result"] == call_ids


@pytest.mark.contract("T9")
@both_modes
async def test_the_response_has_the_re_runs_after_an_auto_approval(stream: bool) -> None:
    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient(call_tools_then_answer("guarded", 2)),
        tools=[guarded],
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[ToolApprovalMiddleware(auto_approval_rules=[lambda function_call: True])],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    response = recorder.boundary.response
    assert response is not None
    contents = [content for message in response.messages for content in message.contents]
    assert [content.result for content in contents if content.type == "function_result"] == ["did 1", "did 2"]
    assert response.messages[-1].text == "answer 3"


@pytest.mark.contract("T9")
@both_modes
async def test_a_turn_does_not_see_the_runs_of_the_turn_before(stream: bool) -> None:
    recorder = TurnRecorder()
    agent = looped(
        ScriptedChatClient(["answer 1", "answer 2", "answer 3", "answer 4"]),
        [InMemoryHistoryProvider(), recorder],
        times=2,
    )
    session = agent.create_session()

    await run_turn(agent, "task 1", stream=stream, session=session)
    await run_turn(agent, "task 2", stream=stream, session=session)

    assert [(call.input_texts, call.answers) for call in recorder.calls] == [
        (["task 1"], ["answer 1", "answer 2"]),
        (["task 2"], ["answer 3", "answer 4"]),
    ]


@pytest.mark.contract("T9")
@both_modes
async def test_the_run_scoped_providers_still_see_their_own_run(stream: bool) -> None:
    """A guard, green without the turn scope too: history would store messages twice if it saw the whole turn."""
    run_scoped = RunRecorder()
    agent = looped(
        ScriptedChatClient(["answer 1", "answer 2"]),
        [InMemoryHistoryProvider(), run_scoped, TurnRecorder()],
        times=2,
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert [call.answers for call in run_scoped.calls] == [["answer 1"], ["answer 2"]]


# endregion
# region T9: everything else is the last run's


@pytest.mark.contract("T9")
@both_modes
async def test_the_instructions_are_the_last_runs(stream: bool) -> None:
    recorder = TurnRecorder()
    agent = looped(ScriptedChatClient(), [NumberedContext(), InMemoryHistoryProvider(), recorder])

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert recorder.boundary.context.instructions == ["instructions of run 3"]


@pytest.mark.contract("T9")
@both_modes
async def test_the_tools_are_the_last_runs(stream: bool) -> None:
    recorder = TurnRecorder()
    agent = looped(ScriptedChatClient(), [NumberedContext(), InMemoryHistoryProvider(), recorder])

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert [item.name for item in recorder.boundary.context.tools] == ["tool_of_run_3"]


@pytest.mark.contract("T9")
@both_modes
async def test_the_context_messages_are_the_last_runs(stream: bool) -> None:
    recorder = TurnRecorder()
    agent = looped(ScriptedChatClient(), [NumberedContext(), InMemoryHistoryProvider(), recorder])

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert texts(recorder.boundary.context.context_messages["numbered"]) == ["context of run 3"]


@pytest.mark.contract("T9")
@both_modes
async def test_the_metadata_is_the_last_runs(stream: bool) -> None:
    recorder = TurnRecorder()
    agent = looped(ScriptedChatClient(), [NumberedContext(), InMemoryHistoryProvider(), recorder])

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert recorder.boundary.context.metadata == {"run": 3}


@pytest.mark.contract("T9")
@both_modes
async def test_the_options_are_the_last_runs(stream: bool) -> None:
    class NumberedOptions(AgentMiddleware):
        def __init__(self) -> None:
            self.runs = 0

        async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
            self.runs += 1
            context.options = {"custom": f"options of run {self.runs}"}
            await call_next()

    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient(),
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[AgentLoopMiddleware(iterate(3), max_iterations=None), NumberedOptions()],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session(), options={"custom": "the caller's"})

    assert recorder.boundary.options == {"custom": "options of run 3"}


@pytest.mark.contract("T9")
@pytest.mark.parametrize("iterations", [1, 3], ids=["one_run", "three_runs"])
@both_modes
async def test_the_session_is_the_callers(stream: bool, iterations: int) -> None:
    """A guard, green without the turn scope too."""
    recorder = TurnRecorder()
    agent = looped(ScriptedChatClient(), [InMemoryHistoryProvider(), recorder], times=iterations)
    session = agent.create_session()

    await run_turn(agent, "task", stream=stream, session=session)

    assert recorder.calls[-1].session is session
    assert recorder.calls[-1].state is session.state[recorder.source_id]
    assert recorder.calls[-1].context.session_id == session.session_id
    assert recorder.calls[-1].agent is agent


@pytest.mark.contract("T9")
@both_modes
@both_orders
async def test_without_a_session_the_boundary_sees_the_last_runs(stream: bool, history_first: bool) -> None:
    recorder = TurnRecorder()
    run_scoped = RunRecorder()
    agent = looped(
        ScriptedChatClient(["answer 1", "answer 2", "answer 3"]),
        [run_scoped, *in_order(history_first, InMemoryHistoryProvider(), recorder)],
    )

    await run_turn(agent, "task", stream=stream)

    assert recorder.boundary.session is run_scoped.calls[-1].session
    assert recorder.boundary.stored_texts[-1] == "answer 3"


@pytest.mark.contract("T9")
@both_modes
async def test_without_a_session_the_runs_of_a_loop_stay_isolated(stream: bool) -> None:
    """A guard, green without the turn scope too."""
    run_scoped = RunRecorder()
    client = ScriptedChatClient(["answer 1", "answer 2"])
    agent = looped(client, [InMemoryHistoryProvider(), run_scoped, TurnRecorder()], times=2)

    await run_turn(agent, "task", stream=stream)

    assert run_scoped.calls[0].session is not run_scoped.calls[1].session
    assert "answer 1" not in [message.text for message in client.requests[1].messages if message.role == "assistant"]


@pytest.mark.contract("T9")
@both_modes
async def test_the_session_that_a_middleware_swapped_in_is_the_last_runs(stream: bool) -> None:
    other = AgentSession(session_id="swapped in")

    class SwapSession(AgentMiddleware):
        async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
            context.session = other
            await call_next()

    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient(),
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[AgentLoopMiddleware(iterate(2), max_iterations=None), SwapSession()],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert recorder.boundary.session is other


class WeakContexts(ContextProvider):
    """Counts the contexts of earlier runs that something still holds on to."""

    def __init__(self) -> None:
        super().__init__("weak_contexts")
        self.contexts: list[weakref.ref[SessionContext]] = []
        self.alive: list[int] = []

    async def after_run(
        self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        gc.collect()
        self.alive.append(sum(reference() is not None for reference in self.contexts))
        self.contexts.append(weakref.ref(context))


@pytest.mark.contract("T9")
@both_modes
async def test_a_long_turn_keeps_the_context_of_its_last_run_only(stream: bool) -> None:
    """Each context holds the history as it was loaded, so keeping all of them grows with the square of the turn."""
    contexts = WeakContexts()
    agent = looped(ScriptedChatClient(), [InMemoryHistoryProvider(), TurnRecorder(), contexts], times=8)

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert max(contexts.alive) <= 1


@pytest.mark.contract("T9")
@both_modes
@both_orders
async def test_a_plain_run_has_it_all(stream: bool, history_first: bool) -> None:
    """A guard, green without the turn scope too."""
    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient(["answer"]),
        context_providers=[NumberedContext(), *in_order(history_first, InMemoryHistoryProvider(), recorder)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session(), options={"custom": "mine"})

    boundary = recorder.boundary
    assert (boundary.input_texts, boundary.answers, boundary.options) == (["task"], ["answer"], {"custom": "mine"})
    assert boundary.context.instructions == ["instructions of run 1"]
    assert boundary.context.metadata == {"run": 1}


# endregion
