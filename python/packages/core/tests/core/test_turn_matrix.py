# Copyright (c) Microsoft. All rights reserved.

"""Every way in which a turn can end, in either mode, persistence and provider order."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from agent_framework import (
    Agent,
    AgentContext,
    AgentLoopMiddleware,
    AgentMiddleware,
    AgentResponse,
    AgentSession,
    ChatResponse,
    CompactionProvider,
    Content,
    ContinuationToken,
    InMemoryHistoryProvider,
    Message,
    MiddlewareTermination,
    ToolResultCompactionStrategy,
    tool,
)

from ._turn_scope_helpers import (
    ScriptedChatClient,
    TurnRecorder,
    answer_to,
    call_tool,
    flattened,
    in_order,
    iterate,
    requests_of,
    run_turn,
    settle,
    stored_messages,
)

# How a turn ends, with the contract line that says what that means.
EXIT_KINDS = {
    "predicate_stop": pytest.mark.contract("T1"),
    "cap": pytest.mark.contract("T1"),
    "judge": pytest.mark.contract("T1"),
    "termination": pytest.mark.contract("T6"),
    "approval_pause": pytest.mark.contract("T4"),
    "other_input_pause": pytest.mark.contract("T4"),
    "continuation_token": pytest.mark.contract("T4"),
    "model_error": pytest.mark.contract("T5"),
    "callback_error": pytest.mark.contract("T5"),
    "cancellation": pytest.mark.contract("T5"),
    "abandoned_by_break_or_close": pytest.mark.contract("T5"),
    "abandoned_and_collected": pytest.mark.contract("T5"),
}
MODES = ("non_streaming", "streaming")
PERSISTENCES = ("per_run", "per_service_call")
ORDERS = ("history_first", "history_last")

IMPOSSIBLE = {
    (kind, "non_streaming", persistence, order): "a run that does not stream has no stream to abandon"
    for kind in ("abandoned_by_break_or_close", "abandoned_and_collected")
    for persistence in PERSISTENCES
    for order in ORDERS
}


class Boom(Exception):
    """What fails in these tests."""


@tool(approval_mode="never_require")
def search(number: int) -> str:
    """Search."""
    return f"finding {number}"


@tool(approval_mode="always_require")
def guarded(number: int) -> str:
    """Do something that needs an approval."""
    return f"did {number}"


class TerminateBeforeRun(AgentMiddleware):
    """Terminates instead of starting run number ``run``."""

    def __init__(self, run: int) -> None:
        self.run = run
        self.started = 0

    async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
        self.started += 1
        if self.started == self.run:
            raise MiddlewareTermination("no further run")
        await call_next()


@dataclass
class Exit:
    """A way for a turn to end after two completed iterations with a tool call each."""

    # What the fifth model call, the first of the third iteration, is answered with.
    fifth_reply: Any = "done"
    middleware: Callable[[], list[AgentMiddleware]] = lambda: [AgentLoopMiddleware(iterate(3), max_iterations=None)]
    error: type[BaseException] | None = None
    boundaries: int = 0


def fail_in_the_second_iteration(*, iteration: int, **kwargs: Any) -> bool:
    if iteration == 2:
        raise Boom
    return True


EXITS = {
    "predicate_stop": Exit(
        middleware=lambda: [AgentLoopMiddleware(iterate(2), max_iterations=None)],
        boundaries=1,
    ),
    "cap": Exit(
        middleware=lambda: [AgentLoopMiddleware(lambda **kwargs: True, max_iterations=2)],
        boundaries=1,
    ),
    "judge": Exit(
        middleware=lambda: [AgentLoopMiddleware.with_judge(ScriptedChatClient(["VERDICT: MORE", "VERDICT: DONE"]))],
        boundaries=1,
    ),
    "termination": Exit(
        middleware=lambda: [AgentLoopMiddleware(iterate(3), max_iterations=None), TerminateBeforeRun(3)],
        boundaries=1,
    ),
    "approval_pause": Exit(fifth_reply=call_tool("guarded", "call-5", number=5)),
    "other_input_pause": Exit(
        fifth_reply=Content.from_oauth_consent_request(consent_link="https://example.com/consent")
    ),
    "continuation_token": Exit(
        fifth_reply=ChatResponse(
            messages=[Message(role="assistant", contents=["working on it"], message_id="pending")],
            continuation_token=ContinuationToken(operation="long running"),  # type: ignore[typeddict-unknown-key]
        )
    ),
    "model_error": Exit(fifth_reply=Boom(), error=Boom),
    "callback_error": Exit(
        middleware=lambda: [AgentLoopMiddleware(fail_in_the_second_iteration, max_iterations=None)], error=Boom
    ),
    "cancellation": Exit(error=asyncio.CancelledError),
    "abandoned_by_break_or_close": Exit(fifth_reply=["partial", " answer"]),
    "abandoned_and_collected": Exit(fifth_reply=["partial", " answer"]),
}


class Turn:
    """One turn that ends in the given way, and the turn after it."""

    def __init__(self, kind: str, mode: str, persistence: str, order: str) -> None:
        self.kind = kind
        self.exit = EXITS[kind]
        self.stream = mode == "streaming"
        self.recorder = TurnRecorder()
        self.blocked = asyncio.Event()
        self.abandoned: Any = None
        history = InMemoryHistoryProvider(skip_excluded=True)
        compaction = CompactionProvider(after_strategy=ToolResultCompactionStrategy(keep_last_tool_call_groups=1))
        self.agent = Agent(
            client=ScriptedChatClient(self._reply),
            tools=[search, guarded],
            # Turn-scoped providers fire in reverse order, so the recorder sees the history before it is compacted.
            context_providers=[*in_order(order == "history_first", history, compaction), self.recorder],
            middleware=self.exit.middleware(),
            require_per_service_call_history_persistence=persistence == "per_service_call",
        )
        self.session: AgentSession = self.agent.create_session()

    def _reply(self, call: int, messages: list[Message]) -> Any:
        if call in (1, 3):
            return call_tool("search", f"call-{call}", number=call)
        if call in (2, 4):
            return f"answer {call}"
        if call == 5:
            return self._block() if self.kind == "cancellation" else self.exit.fifth_reply
        return "done"

    async def _block(self) -> str:
        self.blocked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def end(self) -> AgentResponse | None:
        """Run the turn to its end."""
        response: AgentResponse | None = None
        if self.kind.startswith("abandoned"):
            await self._abandon()
        elif self.kind == "cancellation":
            task = asyncio.create_task(run_turn(self.agent, "task", stream=self.stream, session=self.session))
            await self.blocked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        elif self.exit.error is not None:
            with pytest.raises(self.exit.error):
                await run_turn(self.agent, "task", stream=self.stream, session=self.session)
        else:
            response = await run_turn(self.agent, "task", stream=self.stream, session=self.session)
        return response

    async def _abandon(self) -> None:
        self.abandoned = self.agent.run("task", stream=True, session=self.session)
        async for update in self.abandoned:
            if update.text == "partial":
                break
        if self.kind == "abandoned_and_collected":
            self.abandoned = None
        elif hasattr(self.abandoned, "close"):
            await self.abandoned.close()

    async def settle(self) -> None:
        """Let everything run that an abnormal end may have left behind."""
        if self.exit.boundaries == 0:
            await settle()

    async def next_turn(self, response: AgentResponse | None) -> None:
        """Let the user go on: with the answer to an approval request, or with something else."""
        self.agent.middleware = []
        pending = requests_of(response) if response is not None and self.kind == "approval_pause" else []
        await run_turn(
            self.agent,
            answer_to(*pending) if pending else "another task",
            stream=self.stream,
            session=self.session,
        )


CELLS = [
    pytest.param(kind, mode, persistence, order, id=f"{kind}-{mode}-{persistence}-{order}", marks=mark)
    for (kind, mark), mode, persistence, order in itertools.product(EXIT_KINDS.items(), MODES, PERSISTENCES, ORDERS)
    if (kind, mode, persistence, order) not in IMPOSSIBLE
]
every_cell = pytest.mark.parametrize(("kind", "mode", "persistence", "order"), CELLS)


# region the matrix


@every_cell
async def test_a_turn_fires_at_its_end_and_not_otherwise(kind: str, mode: str, persistence: str, order: str) -> None:
    turn = Turn(kind, mode, persistence, order)

    await turn.end()
    await turn.settle()

    assert turn.recorder.count == turn.exit.boundaries


@every_cell
async def test_a_turn_is_compacted_at_its_end_and_not_otherwise(
    kind: str, mode: str, persistence: str, order: str
) -> None:
    """Of the two tool calls one is flattened at a boundary; without one both stay verbatim."""
    turn = Turn(kind, mode, persistence, order)

    await turn.end()
    await turn.settle()

    assert flattened(stored_messages(turn.session)) == turn.exit.boundaries


@every_cell
async def test_the_next_turn_fires_once_and_sees_it_all(kind: str, mode: str, persistence: str, order: str) -> None:
    turn = Turn(kind, mode, persistence, order)

    await turn.next_turn(await turn.end())

    assert turn.recorder.count == turn.exit.boundaries + 1
    assert turn.recorder.calls[-1].stored_texts[-1] == "done"
    assert {"task", "answer 2", "answer 4"} <= set(turn.recorder.calls[-1].stored_texts)


@every_cell
async def test_the_next_turn_compacts_what_is_left(kind: str, mode: str, persistence: str, order: str) -> None:
    """All tool calls but the newest are flattened after it; an approved call is the third of them.

    A guard, green without the turn scope too.
    """
    turn = Turn(kind, mode, persistence, order)

    await turn.next_turn(await turn.end())

    assert flattened(stored_messages(turn.session)) == (2 if kind == "approval_pause" else 1)


# The matrix is every line's; this says that none of its cells is missing.
@pytest.mark.contract("T1")
@pytest.mark.parametrize(
    "test",
    [
        test_a_turn_fires_at_its_end_and_not_otherwise,
        test_a_turn_is_compacted_at_its_end_and_not_otherwise,
        test_the_next_turn_fires_once_and_sees_it_all,
        test_the_next_turn_compacts_what_is_left,
    ],
    ids=lambda test: test.__name__,
)
def test_the_matrix_is_complete(test: Any) -> None:
    (parametrize,) = [mark for mark in test.pytestmark if mark.name == "parametrize"]
    generated = [cell.id for cell in parametrize.args[1]]
    product = itertools.product(EXIT_KINDS, MODES, PERSISTENCES, ORDERS)

    assert set(EXITS) == set(EXIT_KINDS)
    assert all(IMPOSSIBLE.values())
    assert len(generated) == len(set(generated)) == 88
    assert set(generated) == {"-".join(cell) for cell in product if cell not in IMPOSSIBLE}


# endregion
