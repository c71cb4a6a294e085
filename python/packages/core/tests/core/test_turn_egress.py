# Copyright (c) Microsoft. All rights reserved.

"""Egress gates hold at the boundary (T11)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from agent_hooks import ALLOW, Decision, InterceptionBlocked, Transform, Verdict

from agent_framework import (
    Agent,
    AgentContext,
    AgentLoopMiddleware,
    AgentMiddleware,
    AgentResponse,
    AgentResponseUpdate,
    Content,
    InMemoryHistoryProvider,
    ResponseStream,
    ToolApprovalMiddleware,
    create_agent_hooks_middleware,
    tool,
)

from ._turn_scope_helpers import (
    RunRecorder,
    ScriptedChatClient,
    TurnRecorder,
    both_modes,
    both_orders,
    call_tools_then_answer,
    in_order,
    iterate,
    run_turn,
    settle,
    stored_messages,
    texts,
)

pytestmark = pytest.mark.filterwarnings("ignore::agent_framework._feature_stage.ExperimentalWarning")

DENY = Verdict.deny(reason="secret")
REDACT = Verdict(decision=Decision.TRANSFORM, transform=Transform(path="$target.content", value="[redacted]"))

# Where the gate is: around the only run, around every run of a loop, or around the whole loop.
gate_places = pytest.mark.parametrize("place", ["no_loop", "inside_the_loop", "outside_the_loop"])


@tool(approval_mode="never_require")
def lookup(number: int) -> str:
    """Look something up."""
    return f"finding {number}"


@tool(approval_mode="always_require")
def guarded(number: int) -> str:
    """Do something that needs an approval."""
    return f"did {number}"


class Guard:
    """Gives its verdicts at one interception point, the last one from then on, and allows everything else."""

    def __init__(self, *verdicts: Any, point: str = "output") -> None:
        self.verdicts = list(verdicts)
        self.point = point

    def intercept(self, context: dict[str, Any]) -> Any:
        if context["interception_point"] != self.point:
            return ALLOW
        return self.verdicts.pop(0) if len(self.verdicts) > 1 else self.verdicts[0]


def gate(*verdicts: Any, point: str = "output") -> Any:
    return create_agent_hooks_middleware([Guard(*verdicts, point=point)])


def loop(times: int = 2) -> AgentLoopMiddleware:
    return AgentLoopMiddleware(
        iterate(times), max_iterations=None, next_message=lambda **kwargs: "go on", inject_progress=False
    )


def placed(place: str, gate: Any) -> list[Any]:
    return {"no_loop": [gate], "inside_the_loop": [loop(), gate], "outside_the_loop": [gate, loop()]}[place]


# region T11: a gate that denies


@pytest.mark.contract("T11")
@gate_places
@both_modes
@both_orders
async def test_denied_content_reaches_no_turn_scoped_provider(stream: bool, history_first: bool, place: str) -> None:
    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient(["secret 1", "secret 2"]),
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=placed(place, gate(DENY)),
    )
    session = agent.create_session()

    with pytest.raises(InterceptionBlocked):
        await run_turn(agent, "task", stream=stream, session=session)
    await settle()

    assert recorder.count == 0
    assert stored_messages(session) == []


@pytest.mark.contract("T5")
@pytest.mark.contract("T11")
@both_modes
@both_orders
async def test_content_denied_in_a_later_iteration_reaches_no_turn_scoped_provider(
    stream: bool, history_first: bool
) -> None:
    """The error ends the turn without a boundary (T5); the iteration that was allowed stays stored."""
    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient(["answer 1", "secret 2"]),
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=[loop(), gate(ALLOW, DENY)],
    )
    session = agent.create_session()

    with pytest.raises(InterceptionBlocked):
        await run_turn(agent, "task", stream=stream, session=session)
    await settle()

    assert recorder.count == 0
    assert texts(stored_messages(session)) == ["task", "answer 1"]


@pytest.mark.contract("T9")
@pytest.mark.contract("T11")
@pytest.mark.parametrize("stream", [False], ids=["non_streaming"])
async def test_an_attempt_that_was_denied_is_not_in_the_response_of_the_boundary(stream: bool) -> None:
    """A retry outside of the gate tries again: the denied attempt was a run, but T11 goes before T9.

    Not streaming: there a base may hang the gate on the stream of the whole pipeline, which a middleware that drains
    its own stream does not get to see.
    """

    class RetryDenied(AgentMiddleware):
        async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
            try:
                await call_next()
                if isinstance(context.result, ResponseStream):
                    await context.result.get_final_response()
            except InterceptionBlocked:
                await call_next()

    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient(["secret", "answer"]),
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[RetryDenied(), gate(DENY, ALLOW)],
    )
    session = agent.create_session()

    await run_turn(agent, "task", stream=stream, session=session)

    assert recorder.boundary.answers == ["answer"]
    assert texts(stored_messages(session)) == ["task", "answer"]


@pytest.mark.contract("T11")
@both_modes
async def test_a_service_call_that_was_denied_reaches_no_turn_scoped_provider(stream: bool) -> None:
    """Under per-service-call persistence the gate is around the model call."""
    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient(["secret"]),
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[gate(DENY, point="post_model_call")],
        require_per_service_call_history_persistence=True,
    )
    session = agent.create_session()

    with pytest.raises(InterceptionBlocked):
        await run_turn(agent, "task", stream=stream, session=session)
    await settle()

    assert recorder.count == 0
    assert "secret" not in texts(stored_messages(session))


@pytest.mark.contract("T11")
@gate_places
@both_modes
async def test_the_turn_after_a_denied_one_has_its_own_boundary(stream: bool, place: str) -> None:
    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient(["secret", "answer"]),
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=placed(place, gate(DENY, ALLOW)),
    )
    session = agent.create_session()
    if place == "outside_the_loop":
        agent.client = ScriptedChatClient(["secret", "secret", "answer"])

    with pytest.raises(InterceptionBlocked):
        await run_turn(agent, "task", stream=stream, session=session)
    await run_turn(agent, "another task", stream=stream, session=session)

    assert recorder.boundary.input_texts == ["another task"]
    assert set(recorder.boundary.answers) == {"answer"}


# endregion
# region T11: a gate that rewrites


@pytest.mark.contract("T11")
@pytest.mark.parametrize("place", ["no_loop", "inside_the_loop"])
@both_modes
@both_orders
async def test_a_turn_scoped_provider_sees_what_the_gate_let_through(
    stream: bool, history_first: bool, place: str
) -> None:
    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient(["secret"]),
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=placed(place, gate(REDACT)),
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert set(recorder.boundary.answers) == {"[redacted]"}
    assert "secret" not in recorder.boundary.stored_texts


# endregion
# region T11: a gate that allows


@pytest.mark.contract("T11")
@gate_places
@both_modes
@both_orders
async def test_the_boundary_behind_a_gate_that_allows_comes_after_the_history(
    stream: bool, history_first: bool, place: str
) -> None:
    """In the order of T3, once, and with every message stored once."""
    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient(["answer 1", "answer 2"]),
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=placed(place, gate(ALLOW)),
    )
    session = agent.create_session()

    await run_turn(agent, "task", stream=stream, session=session)

    expected = ["task", "answer 1"] if place == "no_loop" else ["task", "answer 1", "go on", "answer 2"]
    assert recorder.boundary.stored_texts == expected


@pytest.mark.contract("T11")
@gate_places
@both_modes
@both_orders
async def test_nothing_is_stored_twice_behind_a_gate(stream: bool, history_first: bool, place: str) -> None:
    run_scoped = RunRecorder()
    agent = Agent(
        client=ScriptedChatClient(["answer 1", "answer 2"]),
        context_providers=[run_scoped, *in_order(history_first, InMemoryHistoryProvider(), TurnRecorder())],
        middleware=placed(place, gate(ALLOW)),
    )
    session = agent.create_session()

    await run_turn(agent, "task", stream=stream, session=session)

    expected = ["task", "answer 1"] if place == "no_loop" else ["task", "answer 1", "go on", "answer 2"]
    assert texts(stored_messages(session)) == expected
    assert run_scoped.count == (1 if place == "no_loop" else 2)


@pytest.mark.contract("T11")
@pytest.mark.parametrize("place", ["no_loop", "inside_the_loop"])
@both_modes
@both_orders
async def test_gated_service_calls_are_stored_once_and_before_the_boundary(
    stream: bool, history_first: bool, place: str
) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient(call_tools_then_answer("lookup", 1))
    agent = Agent(
        client=client,
        tools=[lookup],
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=placed(place, gate(ALLOW)),
        require_per_service_call_history_persistence=True,
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    expected = ["task", "answer 2"] if place == "no_loop" else ["task", "answer 2", "go on", "answer 3"]
    assert recorder.boundary.stored_texts == expected


@pytest.mark.contract("T11")
@both_modes
async def test_auto_approved_re_runs_behind_a_gate_fire_once(stream: bool) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient(call_tools_then_answer("guarded", 2))
    agent = Agent(
        client=client,
        tools=[guarded],
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[gate(ALLOW), ToolApprovalMiddleware(auto_approval_rules=[lambda function_call: True])],
    )

    response = await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert response.messages[-1].text == "answer 3"
    assert recorder.boundary.stored_texts[-1] == "answer 3"


# endregion
# region T11: what a gate hangs on the stream of an iteration


class Exclaim(AgentMiddleware):
    """Hangs a hook of every kind on the stream of the run that it is in front of, as a gate does."""

    def __init__(self) -> None:
        self.results: list[str] = []
        self.cleanups = 0

    async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
        def exclaim(update: AgentResponseUpdate) -> AgentResponseUpdate:
            return AgentResponseUpdate(
                contents=[Content.from_text(f"{update.text}!")], role=update.role, message_id=update.message_id
            )

        def note_result(response: AgentResponse) -> None:
            self.results.append(response.text)

        def note_cleanup() -> None:
            self.cleanups += 1

        context.stream_transform_hooks.append(exclaim)
        context.stream_result_hooks.append(note_result)
        context.stream_cleanup_hooks.append(note_cleanup)
        await call_next()


def exclaiming_agent(middleware: list[Any]) -> Agent:
    return Agent(
        client=ScriptedChatClient(["answer 1", "answer 2"]),
        context_providers=[InMemoryHistoryProvider()],
        middleware=middleware,
    )


@pytest.mark.contract("T11")
async def test_update_hooks_of_an_iteration_see_its_updates() -> None:
    """Each its own iteration's: what the first iteration registered is not applied to the second."""
    agent = exclaiming_agent([loop(), Exclaim()])

    updates = [update async for update in agent.run("task", stream=True, session=agent.create_session())]

    assert [update.text for update in updates if update.role == "assistant"] == ["answer 1!", "answer 2!"]


@pytest.mark.contract("T11")
async def test_result_hooks_of_an_iteration_see_its_result() -> None:
    exclaim = Exclaim()
    agent = exclaiming_agent([loop(), exclaim])

    await run_turn(agent, "task", stream=True, session=agent.create_session())

    assert [result.rstrip("!") for result in exclaim.results] == ["answer 1", "answer 2"]


@pytest.mark.contract("T11")
async def test_cleanup_hooks_of_an_iteration_run_once() -> None:
    exclaim = Exclaim()
    agent = exclaiming_agent([loop(), exclaim])

    await run_turn(agent, "task", stream=True, session=agent.create_session())

    assert exclaim.cleanups == 2


class NoteHooks(AgentMiddleware):
    """Notes the order in which the hooks of several middleware run."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name = name
        self.events = events

    async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
        context.stream_transform_hooks.append(lambda update: self.events.append(f"update {self.name}"))
        context.stream_result_hooks.append(lambda response: self.events.append(f"result {self.name}"))
        context.stream_cleanup_hooks.append(lambda: self.events.append(f"cleanup {self.name}"))
        await call_next()


@pytest.mark.contract("T11")
async def test_hooks_inside_of_a_loop_run_in_the_order_they_run_in_outside_of_one() -> None:
    plain: list[str] = []
    looped: list[str] = []

    await run_turn(exclaiming_agent([NoteHooks(name, plain) for name in "ABC"]), "task", stream=True)
    await run_turn(exclaiming_agent([loop(1), *[NoteHooks(name, looped) for name in "ABC"]]), "task", stream=True)

    assert len(plain) == 9
    assert looped == plain


@pytest.mark.contract("T11")
async def test_hooks_outside_of_a_loop_see_the_whole_stream() -> None:
    """A guard, green without the turn scope too."""
    exclaim = Exclaim()
    agent = exclaiming_agent([exclaim, loop()])

    updates = [update async for update in agent.run("task", stream=True, session=agent.create_session())]

    assert [update.text for update in updates if update.role == "assistant"] == ["answer 1!", "answer 2!"]
    assert (len(exclaim.results), exclaim.cleanups) == (1, 1)


# endregion
