# Copyright (c) Microsoft. All rights reserved.

"""Abnormal ends are not boundaries: errors, cancellation and abandoned streams fire nothing, then or later (T5)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from typing import Any

import pytest

from agent_framework import (
    Agent,
    AgentContext,
    AgentLoopMiddleware,
    AgentMiddleware,
    AgentResponseUpdate,
    AgentSession,
    CompactionProvider,
    InMemoryHistoryProvider,
    Message,
    ResponseStream,
    SessionContext,
    ToolResultCompactionStrategy,
    tool,
)
from agent_framework.observability import AgentTelemetryLayer

from ._turn_scope_helpers import (
    RunRecorder,
    ScriptedChatClient,
    SelfRunningAgent,
    SelfRunningAgentWithMiddleware,
    TurnRecorder,
    both_modes,
    both_orders,
    call_tool,
    call_tools_then_answer,
    flattened,
    in_order,
    iterate,
    run_turn,
    settle,
    stored_messages,
    texts,
)

in_a_loop_or_not = pytest.mark.parametrize("in_a_loop", [False, True], ids=["no_loop", "loop"])


class Boom(Exception):
    """What the parts of these tests raise."""


@tool(approval_mode="never_require")
def search(number: int) -> str:
    """Search."""
    return f"finding {number}"


def raise_in_call(number: int) -> Callable[..., Any]:
    """A callback that raises when it is called for the ``number``-th time."""
    calls = 0

    def callback(**kwargs: Any) -> str:
        nonlocal calls
        calls += 1
        if calls == number:
            raise Boom
        return "go on"

    return callback


def looped_agent_that_fails(failure: str, recorder: TurnRecorder, history_first: bool = True) -> Agent:
    """An agent whose loop completes one iteration and fails in or right after the second."""
    script: Any = ["answer 1", "answer 2", "answer 3"]
    callbacks: dict[str, Any] = {}
    if failure == "model":
        script[1] = Boom()
    elif failure == "tool":
        script[1] = call_tool("unknown_tool", "call-1")
    elif failure == "should_continue":
        callbacks["should_continue"] = raise_in_call(2)
    else:
        callbacks[failure] = raise_in_call(2)
    client = ScriptedChatClient(script)
    client.function_invocation_configuration["terminate_on_unknown_calls"] = True
    return Agent(
        client=client,
        tools=[search],
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=[
            AgentLoopMiddleware(callbacks.pop("should_continue", iterate(3)), max_iterations=None, **callbacks)
        ],
    )


# region T5: errors


@pytest.mark.contract("T5")
@pytest.mark.parametrize("failure", ["model", "tool", "should_continue", "next_message", "record_feedback"])
@both_modes
@both_orders
async def test_an_error_in_a_loop_fires_nothing(stream: bool, history_first: bool, failure: str) -> None:
    recorder = TurnRecorder()
    agent = looped_agent_that_fails(failure, recorder, history_first)

    with pytest.raises(KeyError if failure == "tool" else Boom):
        await run_turn(agent, "task", stream=stream, session=agent.create_session())
    at_once = recorder.count
    await settle()

    assert (at_once, recorder.count) == (0, 0)


@pytest.mark.contract("T5")
@both_modes
@both_orders
async def test_an_error_in_a_plain_run_fires_nothing(stream: bool, history_first: bool) -> None:
    """A guard, green without the turn scope too."""
    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient([Boom()]),
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
    )

    with pytest.raises(Boom):
        await run_turn(agent, "task", stream=stream, session=agent.create_session())
    await settle()

    assert recorder.count == 0


@pytest.mark.contract("T5")
@pytest.mark.parametrize("failure", ["model", "should_continue"])
async def test_asking_a_failed_stream_for_its_final_response_fires_nothing(failure: str) -> None:
    recorder = TurnRecorder()
    agent = looped_agent_that_fails(failure, recorder)

    response_stream = agent.run("task", stream=True, session=agent.create_session())
    with pytest.raises(Boom):
        async for _ in response_stream:
            pass
    # Whether it raises again is the stream's business; only the boundary is asserted.
    with contextlib.suppress(Exception):
        await response_stream.get_final_response()
    await settle()

    assert recorder.count == 0


class FailingInTheStream(SelfRunningAgentWithMiddleware):
    """Its run loop fails after the first update."""

    async def _stream(self, session: Any, context: SessionContext, options: Any) -> AsyncIterable[AgentResponseUpdate]:
        async for update in super()._stream(session, context, options):
            yield update
            raise Boom


class PassOn(AgentMiddleware):
    async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
        await call_next()


behind_a_middleware_or_not = pytest.mark.parametrize(
    "middleware", [None, [PassOn()]], ids=["no_middleware", "middleware"]
)


@pytest.mark.contract("T5")
@behind_a_middleware_or_not
async def test_asking_a_failed_stream_that_runs_the_providers_in_a_result_hook_for_its_final_response_fires_nothing(
    middleware: Any,
) -> None:
    """The stream finalizes what it has got so far, and with it the result hook that calls the providers."""
    recorder = TurnRecorder()
    agent = FailingInTheStream(from_result_hook=True, context_providers=[recorder], middleware=middleware)

    response_stream: Any = agent.run("task", stream=True, session=agent.create_session())
    with pytest.raises(Boom):
        async for _ in response_stream:
            pass
    with contextlib.suppress(Exception):
        await response_stream.get_final_response()
    await settle()

    assert recorder.count == 0


@pytest.mark.contract("T5")
@both_modes
async def test_a_tool_error_that_the_model_gets_to_see_is_no_end(stream: bool) -> None:
    """The function-calling loop turns it into a result and the turn goes on to its boundary."""

    @tool(approval_mode="never_require")
    def broken(number: int) -> str:
        """Fail."""
        raise Boom

    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient(call_tools_then_answer("broken", 1)),
        tools=[broken],
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[AgentLoopMiddleware(iterate(2), max_iterations=None)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert recorder.count == 1


# endregion
# region T5: cancellation


def blocking_script(call_that_blocks: int, blocked: asyncio.Event) -> Callable[[int, list[Message]], Any]:
    """Answers every model call but one, which never ends."""

    async def block() -> str:
        blocked.set()
        await asyncio.Event().wait()
        raise AssertionError

    def script(call: int, messages: list[Message]) -> str | Awaitable[str]:
        return block() if call == call_that_blocks else f"answer {call}"

    return script


@pytest.mark.contract("T5")
@both_modes
@both_orders
@in_a_loop_or_not
async def test_cancellation_fires_nothing(stream: bool, history_first: bool, in_a_loop: bool) -> None:
    """So it is as prompt as without the provider: no ``after_run`` runs between the request and the end of the task."""
    recorder = TurnRecorder()
    blocked = asyncio.Event()
    agent = Agent(
        client=ScriptedChatClient(blocking_script(2 if in_a_loop else 1, blocked)),
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=[AgentLoopMiddleware(iterate(3), max_iterations=None)] if in_a_loop else None,
    )

    task = asyncio.create_task(run_turn(agent, "task", stream=stream, session=agent.create_session()))
    await blocked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    at_once = recorder.count
    await settle()

    assert (at_once, recorder.count) == (0, 0)


@pytest.mark.contract("T5")
@both_modes
async def test_cancellation_between_two_iterations_fires_nothing(stream: bool) -> None:
    recorder = TurnRecorder()
    blocked = asyncio.Event()

    async def should_continue(**kwargs: Any) -> bool:
        blocked.set()
        await asyncio.Event().wait()
        return True

    agent = Agent(
        client=ScriptedChatClient(),
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[AgentLoopMiddleware(should_continue, max_iterations=None)],
    )

    task = asyncio.create_task(run_turn(agent, "task", stream=stream, session=agent.create_session()))
    await blocked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await settle()

    assert recorder.count == 0


@pytest.mark.contract("T5")
@both_modes
@in_a_loop_or_not
async def test_cancellation_reaches_a_boundary_that_is_under_way(stream: bool, in_a_loop: bool) -> None:
    """A guard, green without the turn scope too: the boundary is not shielded from the caller."""
    events: list[str] = []
    started = asyncio.Event()

    class SlowProvider(TurnRecorder):
        async def after_run(
            self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]
        ) -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                events.append("provider cancelled")
                raise

    agent = Agent(
        client=ScriptedChatClient(),
        context_providers=[InMemoryHistoryProvider(), SlowProvider()],
        middleware=[AgentLoopMiddleware(iterate(2), max_iterations=None)] if in_a_loop else None,
    )

    task = asyncio.create_task(run_turn(agent, "task", stream=stream, session=agent.create_session()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert events == ["provider cancelled"]


# endregion
# region T5: abandoned streams


async def take(response_stream: Any, updates: int) -> None:
    """Consume ``updates`` updates and stop in the middle of the stream."""
    taken = 0
    async for _ in response_stream:
        taken += 1
        if taken == updates:
            break


def stream_of(recorder: TurnRecorder, in_a_loop: bool, history_first: bool = True) -> Any:
    """A stream of two updates a run, and of three runs if it is looped."""
    agent = Agent(
        client=ScriptedChatClient([["answer", " goes on"]]),
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=[AgentLoopMiddleware(iterate(3), max_iterations=None)] if in_a_loop else None,
    )
    return agent.run("task", stream=True, session=agent.create_session())


# In a loop update 1 and 2 are the first run's, 3 and 4 the nudge and the progress, 5 and 6 the second run's.
MIDDLE = {False: 1, True: 5}


@pytest.mark.contract("T5")
@both_orders
@in_a_loop_or_not
async def test_a_break_fires_nothing(history_first: bool, in_a_loop: bool) -> None:
    recorder = TurnRecorder()
    response_stream = stream_of(recorder, in_a_loop, history_first)

    await take(response_stream, MIDDLE[in_a_loop])
    await settle()

    assert recorder.count == 0


@pytest.mark.contract("T5")
@in_a_loop_or_not
async def test_a_break_at_the_last_update_fires_nothing(in_a_loop: bool) -> None:
    """Nobody asked for the end of the stream, so the turn has not ended either."""
    recorder = TurnRecorder()
    response_stream = stream_of(recorder, in_a_loop)

    await take(response_stream, 10 if in_a_loop else 2)
    await settle()

    assert recorder.count == 0


@pytest.mark.contract("T5")
@both_orders
@in_a_loop_or_not
async def test_a_stream_that_is_broken_off_and_collected_fires_nothing(history_first: bool, in_a_loop: bool) -> None:
    recorder = TurnRecorder()

    await take(stream_of(recorder, in_a_loop, history_first), MIDDLE[in_a_loop])
    await settle()

    assert recorder.count == 0


@pytest.mark.contract("T5")
@in_a_loop_or_not
async def test_a_consumer_that_raises_fires_nothing(in_a_loop: bool) -> None:
    recorder = TurnRecorder()

    async def consume() -> None:
        taken = 0
        async for _ in stream_of(recorder, in_a_loop):
            taken += 1
            if taken == MIDDLE[in_a_loop]:
                raise Boom

    with pytest.raises(Boom):
        await consume()
    await settle()

    assert recorder.count == 0


@pytest.mark.contract("T5")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@in_a_loop_or_not
async def test_a_stream_that_is_never_started_fires_nothing(in_a_loop: bool) -> None:
    """A guard, green without the turn scope too."""
    recorder = TurnRecorder()

    stream_of(recorder, in_a_loop)
    await settle()

    assert recorder.count == 0


async def relay(recorder: TurnRecorder, in_a_loop: bool) -> AsyncGenerator[Any, None]:
    """What a web server puts around a stream; it closes this generator when its client goes away."""
    async for update in stream_of(recorder, in_a_loop):
        yield update


@pytest.mark.contract("T5")
@in_a_loop_or_not
async def test_closing_a_generator_that_relays_a_stream_fires_nothing(in_a_loop: bool) -> None:
    recorder = TurnRecorder()
    relayed = relay(recorder, in_a_loop)

    await take(relayed, MIDDLE[in_a_loop])
    await relayed.aclose()
    await settle()

    assert recorder.count == 0


# Not every base can close a stream itself.
CLOSABLE = {"close": "close", "aclose": "aclose", "async_with": "__aexit__"}


@pytest.mark.contract("T5")
@pytest.mark.parametrize(
    "close", ["let_go", *[name for name, method in CLOSABLE.items() if hasattr(ResponseStream, method)]]
)
@in_a_loop_or_not
async def test_closing_a_stream_fires_nothing(in_a_loop: bool, close: str) -> None:
    """Neither does asking the closed stream for the response it has got so far."""
    recorder = TurnRecorder()
    response_stream: Any = stream_of(recorder, in_a_loop)
    fired: list[int] = []

    if close == "async_with":
        async with response_stream:
            await take(response_stream, MIDDLE[in_a_loop])
    else:
        await take(response_stream, MIDDLE[in_a_loop])
        if close != "let_go":
            await getattr(response_stream, CLOSABLE[close])()
    fired.append(recorder.count)
    if close != "let_go":
        with contextlib.suppress(Exception):
            await response_stream.get_final_response()
    fired.append(recorder.count)
    del response_stream
    await settle()
    fired.append(recorder.count)

    assert fired == [0, 0, 0]


@pytest.mark.contract("T5")
@pytest.mark.parametrize(
    "close", ["let_go", *[name for name, method in CLOSABLE.items() if hasattr(ResponseStream, method)]]
)
@behind_a_middleware_or_not
async def test_closing_a_stream_that_runs_the_providers_in_a_result_hook_fires_nothing(
    middleware: Any, close: str
) -> None:
    """Neither does asking the closed stream for the response it has got so far."""
    recorder = TurnRecorder()
    agent = SelfRunningAgentWithMiddleware(from_result_hook=True, context_providers=[recorder], middleware=middleware)
    response_stream: Any = agent.run("task", stream=True, session=agent.create_session())

    if close == "async_with":
        async with response_stream:
            await take(response_stream, 1)
    else:
        await take(response_stream, 1)
        if close != "let_go":
            await getattr(response_stream, CLOSABLE[close])()
    if close != "let_go":
        with contextlib.suppress(Exception):
            await response_stream.get_final_response()
    del response_stream
    await settle()

    assert recorder.count == 0


class TracedSelfRunningAgent(AgentTelemetryLayer, SelfRunningAgent):
    """The telemetry of a closed stream finalizes it, and with it the result hook that calls the providers."""


@pytest.mark.contract("T5")
@pytest.mark.parametrize(
    "close", ["let_go", *[name for name, method in CLOSABLE.items() if hasattr(ResponseStream, method)]]
)
async def test_closing_the_stream_of_a_traced_agent_with_its_own_run_loop_fires_nothing(close: str) -> None:
    recorder, run_scoped = TurnRecorder(), RunRecorder()
    agent = TracedSelfRunningAgent(
        answers=["answer 1", "answer 2"], from_result_hook=True, context_providers=[recorder, run_scoped]
    )
    response_stream: Any = agent.run("task", stream=True, session=agent.create_session())

    if close == "async_with":
        async with response_stream:
            await take(response_stream, 1)
    else:
        await take(response_stream, 1)
        if close != "let_go":
            await getattr(response_stream, CLOSABLE[close])()
    del response_stream
    await settle()

    assert (recorder.count, run_scoped.count) == (0, 0)


@pytest.mark.contract("T5")
@in_a_loop_or_not
def test_the_end_of_the_event_loop_fires_nothing(in_a_loop: bool) -> None:
    """``asyncio.run`` closes the generators that are left over."""
    recorder = TurnRecorder()
    kept: list[Any] = []

    async def main() -> None:
        kept.append(stream_of(recorder, in_a_loop))
        await take(kept[0], MIDDLE[in_a_loop])

    asyncio.run(main())

    assert recorder.count == 0


@pytest.mark.contract("T5")
async def test_cancelling_the_consumer_of_a_paused_stream_fires_nothing() -> None:
    """The consumer is cancelled between two pulls, while it does something of its own."""
    recorder = TurnRecorder()
    response_stream = stream_of(recorder, in_a_loop=True)
    paused = asyncio.Event()

    async def consume() -> None:
        await take(response_stream, MIDDLE[True])
        paused.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(consume())
    await paused.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await settle()

    assert recorder.count == 0


# endregion
# region T5: what was persisted


async def end_abnormally(agent: Agent, session: AgentSession, end: str, stream: bool, blocked: asyncio.Event) -> None:
    """Run the turn until its third iteration and end it there in the given way."""
    if end == "error":
        with pytest.raises(Boom):
            await run_turn(agent, "task", stream=stream, session=session)
    elif end == "cancellation":
        task = asyncio.create_task(run_turn(agent, "task", stream=stream, session=session))
        await blocked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        await take_until("answer 6", agent.run("task", stream=True, session=session))
    await settle()


async def take_until(text: str, response_stream: Any) -> None:
    async for update in response_stream:
        if update.text == text:
            break


abnormal_ends = pytest.mark.parametrize(
    ("end", "stream"),
    [("error", False), ("error", True), ("cancellation", False), ("cancellation", True), ("break", True)],
    ids=[
        "error-non_streaming",
        "error-streaming",
        "cancellation-non_streaming",
        "cancellation-streaming",
        "break-streaming",
    ],
)


def compacting_agent(end: str, blocked: asyncio.Event) -> Agent:
    """Two iterations with a tool call each, a third that ends abnormally, and after that only text."""

    async def block() -> str:
        blocked.set()
        await asyncio.Event().wait()
        raise AssertionError

    def script(call: int, messages: list[Message]) -> Any:
        if call in (1, 3):
            return call_tool("search", f"call-{call}", number=call)
        if call == 5:
            if end == "error":
                return Boom()
            return block() if end == "cancellation" else ["", "answer 6"]
        return f"answer {call}"

    history = InMemoryHistoryProvider(skip_excluded=True)
    compaction = CompactionProvider(after_strategy=ToolResultCompactionStrategy(keep_last_tool_call_groups=1))
    return Agent(
        client=ScriptedChatClient(script),
        tools=[search],
        context_providers=[compaction, history],
        middleware=[AgentLoopMiddleware(iterate(3), max_iterations=None)],
    )


@pytest.mark.contract("T5")
@abnormal_ends
async def test_what_was_persisted_before_an_abnormal_end_stays_verbatim(end: str, stream: bool) -> None:
    blocked = asyncio.Event()
    agent = compacting_agent(end, blocked)
    session = agent.create_session()

    await end_abnormally(agent, session, end, stream, blocked)

    stored = stored_messages(session)
    assert [text for text in texts(stored) if text.startswith("answer")] == ["answer 2", "answer 4"]
    assert flattened(stored) == 0
    assert not [message for message in stored if message.additional_properties.get("_excluded")]


@pytest.mark.contract("T5")
@abnormal_ends
async def test_the_next_boundary_compacts_what_an_abnormal_end_left(end: str, stream: bool) -> None:
    blocked = asyncio.Event()
    agent = compacting_agent(end, blocked)
    session = agent.create_session()

    await end_abnormally(agent, session, end, stream, blocked)
    after_the_end = flattened(stored_messages(session))
    await run_turn(agent, "another task", stream=stream, session=session)

    assert (after_the_end, flattened(stored_messages(session))) == (0, 1)


# endregion
