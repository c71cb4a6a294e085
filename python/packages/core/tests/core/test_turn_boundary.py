# Copyright (c) Microsoft. All rights reserved.

"""The boundary of a user turn: turn-scoped providers fire once (T1), last, and before the caller goes on (T3)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent_framework import (
    Agent,
    AgentLoopMiddleware,
    CompactionProvider,
    ContextProvider,
    HistoryProvider,
    InMemoryHistoryProvider,
    JudgeVerdict,
    Message,
    TodoItem,
    TodoProvider,
    ToolResultCompactionStrategy,
    todos_remaining,
    todos_remaining_message,
    tool,
)

from ._turn_scope_helpers import (
    CompactionProbe,
    RunRecorder,
    ScriptedChatClient,
    TurnRecorder,
    both_modes,
    both_orders,
    call_tool,
    flattened,
    in_order,
    iterate,
    run_turn,
    stored_messages,
    texts,
)


@tool(approval_mode="never_require")
def search(q: str) -> str:
    """Search for q."""
    return f"finding for {q}"


def search_then_answer(call: int, messages: list[Message]) -> Any:
    """Two model calls per run: one asks for the tool, the next answers."""
    item = (call + 1) // 2
    return call_tool("search", f"todo-{item}", q=f"todo {item}") if call % 2 else f"did todo {item}"


# region T1: exactly once, at the boundary


@pytest.mark.contract("T1")
@both_modes
@both_orders
async def test_fires_once_when_the_predicate_stops_the_loop(stream: bool, history_first: bool) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient()
    agent = Agent(
        client=client,
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=[AgentLoopMiddleware(iterate(3), max_iterations=None)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert client.calls == 3
    assert recorder.count == 1


@pytest.mark.contract("T1")
@both_modes
@both_orders
async def test_fires_once_when_max_iterations_caps_the_loop(stream: bool, history_first: bool) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient()
    agent = Agent(
        client=client,
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=[AgentLoopMiddleware(lambda **kwargs: True, max_iterations=4)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert client.calls == 4
    assert recorder.count == 1


@pytest.mark.contract("T1")
@both_modes
@both_orders
async def test_fires_once_when_the_judge_is_satisfied(stream: bool, history_first: bool) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient()
    judge = ScriptedChatClient([
        JudgeVerdict(answered=False, reasoning="not yet").model_dump_json(),
        "VERDICT: MORE",
        "VERDICT: DONE",
    ])
    agent = Agent(
        client=client,
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=[AgentLoopMiddleware.with_judge(judge, max_iterations=None)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert (client.calls, judge.calls) == (3, 3)
    assert recorder.count == 1


@pytest.mark.contract("T1")
@both_modes
@both_orders
async def test_fires_once_when_no_todos_remain(stream: bool, history_first: bool) -> None:
    todos = TodoProvider()
    recorder = TurnRecorder()

    def complete_next_todo(call: int, messages: list[Message]) -> Any:
        if call % 2:
            return call_tool("todos_complete", f"call-{call}", items=[{"id": (call + 1) // 2, "reason": "done"}])
        return "completed one"

    client = ScriptedChatClient(complete_next_todo)
    agent = Agent(
        client=client,
        context_providers=[todos, *in_order(history_first, InMemoryHistoryProvider(), recorder)],
        middleware=[
            AgentLoopMiddleware(todos_remaining(), next_message=todos_remaining_message, max_iterations=None),
        ],
    )
    session = agent.create_session()
    await todos.store.save_state(
        session,
        [TodoItem(id=number, title=f"todo {number}") for number in (1, 2, 3)],
        next_id=4,
        source_id=todos.source_id,
    )

    await run_turn(agent, "Do the todos", stream=stream, session=session)

    assert client.calls == 6
    assert recorder.count == 1


@pytest.mark.contract("T1")
@both_modes
@both_orders
async def test_fires_once_when_an_async_predicate_with_feedback_stops_the_loop(
    stream: bool, history_first: bool
) -> None:
    recorder = TurnRecorder()

    async def should_continue(*, last_result: Any, **kwargs: Any) -> tuple[bool, str | None]:
        await asyncio.sleep(0)
        return "COMPLETE" not in last_result.text, "say COMPLETE"

    client = ScriptedChatClient(["working", "working", "COMPLETE"])
    agent = Agent(
        client=client,
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=[AgentLoopMiddleware(should_continue, max_iterations=None)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert client.calls == 3
    assert recorder.count == 1


@pytest.mark.contract("T1")
@both_modes
async def test_fires_once_when_a_fresh_context_loop_ends(stream: bool) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient()
    agent = Agent(
        client=client,
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[AgentLoopMiddleware(iterate(3), max_iterations=None, fresh_context=True)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert client.calls == 3
    assert recorder.count == 1


@pytest.mark.contract("T1")
@both_modes
async def test_fires_once_when_only_the_final_response_is_returned(stream: bool) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient()
    agent = Agent(
        client=client,
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[AgentLoopMiddleware(iterate(3), max_iterations=None, return_final_only=True)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert client.calls == 3
    assert recorder.count == 1


@pytest.mark.contract("T1")
@both_modes
async def test_does_not_fire_between_iterations(stream: bool) -> None:
    recorder = TurnRecorder()
    fired_so_far: list[int] = []

    def should_continue(*, iteration: int, **kwargs: Any) -> bool:
        fired_so_far.append(recorder.count)
        return iteration < 4

    agent = Agent(
        client=ScriptedChatClient(),
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[AgentLoopMiddleware(should_continue, max_iterations=None)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert fired_so_far == [0, 0, 0, 0]


@pytest.mark.contract("T1")
@both_modes
async def test_run_scoped_providers_still_fire_after_every_iteration(stream: bool) -> None:
    """A guard, green without the turn scope too."""
    run_scoped = RunRecorder()
    agent = Agent(
        client=ScriptedChatClient(),
        context_providers=[InMemoryHistoryProvider(), run_scoped, TurnRecorder()],
        middleware=[AgentLoopMiddleware(iterate(3), max_iterations=None)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert run_scoped.count == 3


@pytest.mark.contract("T1")
@both_modes
@both_orders
async def test_fires_once_in_a_plain_run(stream: bool, history_first: bool) -> None:
    """A guard, green without the turn scope too."""
    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient(),
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert recorder.count == 1


@pytest.mark.contract("T1")
@both_modes
async def test_every_turn_of_a_session_fires_once(stream: bool) -> None:
    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient(),
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[AgentLoopMiddleware(iterate(2), max_iterations=None)],
    )
    session = agent.create_session()
    fired: list[int] = []

    for turn in range(3):
        await run_turn(agent, f"task {turn}", stream=stream, session=session)
        fired.append(recorder.count)

    assert fired == [1, 2, 3]


@pytest.mark.contract("T1")
@both_modes
@both_orders
async def test_the_model_sees_its_own_tool_results_verbatim_until_the_turn_ends(
    stream: bool, history_first: bool
) -> None:
    """Eight iterations with a tool each, of which the strategy keeps two: none is flattened before the boundary."""
    history = InMemoryHistoryProvider(skip_excluded=True)
    compaction = CompactionProvider(
        after_strategy=ToolResultCompactionStrategy(keep_last_tool_call_groups=2),
        history_source_id=history.source_id,
    )
    client = ScriptedChatClient(search_then_answer)
    agent = Agent(
        client=client,
        tools=[search],
        context_providers=in_order(history_first, history, compaction),
        middleware=[AgentLoopMiddleware(iterate(8), max_iterations=None)],
    )

    await run_turn(agent, "Do 8 todos", stream=stream, session=agent.create_session())

    assert client.calls == 16
    assert [flattened(request.messages) for request in client.requests] == [0] * 16


@pytest.mark.contract("T1")
@both_modes
@both_orders
async def test_the_boundary_compacts_the_whole_turn(stream: bool, history_first: bool) -> None:
    """Eight iterations with a tool each, of which the strategy keeps two: six are flattened after the turn."""
    history = InMemoryHistoryProvider(skip_excluded=True)
    compaction = CompactionProvider(
        after_strategy=ToolResultCompactionStrategy(keep_last_tool_call_groups=2),
        history_source_id=history.source_id,
    )
    agent = Agent(
        client=ScriptedChatClient(search_then_answer),
        tools=[search],
        context_providers=in_order(history_first, history, compaction),
        middleware=[AgentLoopMiddleware(iterate(8), max_iterations=None)],
    )
    session = agent.create_session()

    await run_turn(agent, "Do 8 todos", stream=stream, session=session)

    assert flattened(stored_messages(session)) == 6


@pytest.mark.contract("T1")
@pytest.mark.parametrize(
    ("provider_type", "expected"),
    [(ContextProvider, False), (HistoryProvider, False), (InMemoryHistoryProvider, False), (CompactionProvider, True)],
    ids=["ContextProvider", "HistoryProvider", "InMemoryHistoryProvider", "CompactionProvider"],
)
def test_only_compaction_is_turn_scoped_out_of_the_box(provider_type: type[ContextProvider], expected: bool) -> None:
    assert getattr(provider_type, "after_run_once_per_turn", None) is expected


# endregion
# region T3: last, and before the caller goes on


@pytest.mark.contract("T3")
@both_modes
@both_orders
async def test_the_boundary_of_a_loop_sees_everything_that_was_persisted(stream: bool, history_first: bool) -> None:
    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient(["answer 1", "answer 2", "answer 3"]),
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=[
            AgentLoopMiddleware(
                iterate(3), max_iterations=None, next_message=lambda **kwargs: "go on", inject_progress=False
            )
        ],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert recorder.boundary.stored_texts == ["task", "answer 1", "go on", "answer 2", "go on", "answer 3"]


@pytest.mark.contract("T3")
@both_modes
@both_orders
async def test_the_boundary_of_a_plain_run_sees_everything_that_was_persisted(
    stream: bool, history_first: bool
) -> None:
    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient(["answer"]),
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert recorder.boundary.stored_texts == ["task", "answer"]


@pytest.mark.contract("T3")
@both_modes
@both_orders
async def test_compaction_of_a_plain_run_does_not_lag_a_turn(stream: bool, history_first: bool) -> None:
    history = InMemoryHistoryProvider(skip_excluded=True)
    compaction = CompactionProvider(
        after_strategy=ToolResultCompactionStrategy(keep_last_tool_call_groups=1),
        history_source_id=history.source_id,
    )
    agent = Agent(
        client=ScriptedChatClient(search_then_answer),
        tools=[search],
        context_providers=in_order(history_first, history, compaction),
    )
    session = agent.create_session()
    flattened_after_turn: list[int] = []

    for turn in range(3):
        await run_turn(agent, f"task {turn}", stream=stream, session=session)
        flattened_after_turn.append(flattened(stored_messages(session)))

    assert flattened_after_turn == [0, 1, 2]


@pytest.mark.contract("T3")
@pytest.mark.parametrize("iterations", [None, 2], ids=["plain_run", "loop"])
@both_modes
async def test_run_scoped_providers_finish_before_turn_scoped_ones_start(stream: bool, iterations: int | None) -> None:
    """Within each kind the providers keep the reverse order in which ``after_run`` has always been called.

    So a turn-scoped provider that saves the session belongs before the ``CompactionProvider`` in the list.
    """
    events: list[str] = []
    agent = Agent(
        client=ScriptedChatClient(),
        context_providers=[
            TurnRecorder("turn 1", events=events),
            RunRecorder("run 1", events=events),
            TurnRecorder("turn 2", events=events),
            RunRecorder("run 2", events=events),
        ],
        middleware=[AgentLoopMiddleware(iterate(iterations), max_iterations=None)] if iterations else None,
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert events == ["run 2", "run 1"] * (iterations or 1) + ["turn 2", "turn 1"]


@pytest.mark.contract("T3")
@pytest.mark.parametrize("iterations", [None, 2], ids=["plain_run", "loop"])
@both_orders
async def test_compaction_has_finished_when_run_returns(iterations: int | None, history_first: bool) -> None:
    events: list[str] = []
    history = InMemoryHistoryProvider()
    probe = SlowCompactionProbe(events=events)
    agent = Agent(
        client=ScriptedChatClient(["answer"]),
        context_providers=in_order(history_first, history, CompactionProvider(after_strategy=probe)),
        middleware=[AgentLoopMiddleware(iterate(iterations), max_iterations=None)] if iterations else None,
    )

    await agent.run("task", session=agent.create_session())
    events.append("run() returned")

    assert events == ["compaction", "run() returned"]
    assert probe.seen[0][-1] == "answer"


@pytest.mark.contract("T3")
@pytest.mark.parametrize("iterations", [None, 2], ids=["plain_run", "loop"])
@both_orders
async def test_compaction_has_finished_when_the_iteration_of_a_stream_ends(
    iterations: int | None, history_first: bool
) -> None:
    events: list[str] = []
    history = InMemoryHistoryProvider()
    probe = SlowCompactionProbe(events=events)
    agent = Agent(
        client=ScriptedChatClient(["answer"]),
        context_providers=in_order(history_first, history, CompactionProvider(after_strategy=probe)),
        middleware=[AgentLoopMiddleware(iterate(iterations), max_iterations=None)] if iterations else None,
    )

    response_stream = agent.run("task", stream=True, session=agent.create_session())
    async for _ in response_stream:
        pass
    events.append("iteration ended")
    await response_stream.get_final_response()

    assert events == ["compaction", "iteration ended"]
    assert probe.seen[0][-1] == "answer"


@pytest.mark.contract("T3")
@pytest.mark.parametrize("iterations", [None, 2], ids=["plain_run", "loop"])
@both_orders
async def test_compaction_has_finished_when_get_final_response_returns(
    iterations: int | None, history_first: bool
) -> None:
    events: list[str] = []
    history = InMemoryHistoryProvider()
    probe = SlowCompactionProbe(events=events)
    agent = Agent(
        client=ScriptedChatClient(["answer"]),
        context_providers=in_order(history_first, history, CompactionProvider(after_strategy=probe)),
        middleware=[AgentLoopMiddleware(iterate(iterations), max_iterations=None)] if iterations else None,
    )

    await agent.run("task", stream=True, session=agent.create_session()).get_final_response()
    events.append("get_final_response() returned")

    assert events == ["compaction", "get_final_response() returned"]
    assert probe.seen[0][-1] == "answer"


@pytest.mark.contract("T3")
@pytest.mark.parametrize("iterations", [None, 2], ids=["plain_run", "loop"])
@pytest.mark.parametrize("how", ["awaited_first", "mapped", "with_a_finalizer"])
async def test_compaction_has_finished_when_a_stream_ends_that_the_caller_wrapped(
    how: str, iterations: int | None
) -> None:
    """Servers await the stream, map its updates or give it a finalizer of their own."""
    events: list[str] = []
    agent = Agent(
        client=ScriptedChatClient(["answer"]),
        context_providers=[
            InMemoryHistoryProvider(),
            CompactionProvider(after_strategy=SlowCompactionProbe(events=events)),
        ],
        middleware=[AgentLoopMiddleware(iterate(iterations), max_iterations=None)] if iterations else None,
    )

    response_stream: Any = agent.run("task", stream=True, session=agent.create_session())
    if how == "awaited_first":
        response_stream = await response_stream
    elif how == "mapped":
        response_stream = response_stream.map(lambda update: update.text, lambda updates: "".join(updates))
    else:
        response_stream = response_stream.with_finalizer(lambda updates: len(updates))
    async for _ in response_stream:
        pass
    events.append("iteration ended")
    await response_stream.get_final_response()

    assert events == ["compaction", "iteration ended"]


@pytest.mark.contract("T3")
@both_modes
async def test_the_next_turn_is_sent_the_compacted_history(stream: bool) -> None:
    history = InMemoryHistoryProvider(skip_excluded=True)
    compaction = CompactionProvider(
        after_strategy=ToolResultCompactionStrategy(keep_last_tool_call_groups=1),
        history_source_id=history.source_id,
    )
    client = ScriptedChatClient(search_then_answer)
    agent = Agent(
        client=client,
        tools=[search],
        context_providers=[history, compaction],
        middleware=[AgentLoopMiddleware(iterate(3), max_iterations=None)],
    )
    session = agent.create_session()

    await run_turn(agent, "first task", stream=stream, session=session)
    await run_turn(agent, "second task", stream=stream, session=session)

    assert flattened(client.requests[6].messages) == 2
    assert texts(client.requests[6].messages)[-1] == "second task"


class SlowCompactionProbe(CompactionProbe):
    """Gives everybody else the chance to run before it finishes."""

    async def __call__(self, messages: list[Message]) -> bool:
        for _ in range(5):
            await asyncio.sleep(0)
        return await super().__call__(messages)


# endregion
