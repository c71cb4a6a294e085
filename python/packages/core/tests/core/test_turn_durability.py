# Copyright (c) Microsoft. All rights reserved.

"""Whoever saves the session at the end of a turn saves the compacted history (T3), and nothing else (T12)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_framework import (
    Agent,
    AgentLoopMiddleware,
    AgentSession,
    CompactionProvider,
    ContextProvider,
    FileSessionStore,
    InMemoryHistoryProvider,
    Message,
    SessionContext,
    ToolResultCompactionStrategy,
    tool,
)

from . import _turn_durability_child
from ._turn_scope_helpers import (
    ScriptedChatClient,
    both_modes,
    both_orders,
    call_tool,
    flattened,
    in_order,
    iterate,
    run_turn,
    stored_messages,
)

both_formats = pytest.mark.parametrize("serialization_format", ["json", "msgpack"])


@tool(approval_mode="never_require")
def search(number: int) -> str:
    """Search."""
    return f"finding {number}"


def search_then_answer(call: int, messages: list[Message]) -> Any:
    """A tool call in every run."""
    return call_tool("search", f"call-{call}", number=call) if call % 2 else f"answer {call}"


class SessionSaver(ContextProvider):
    """Saves the session once a turn; it is listed before the ``CompactionProvider``, so it comes after it."""

    after_run_once_per_turn = True

    def __init__(self, store: FileSessionStore) -> None:
        super().__init__("session_saver")
        self.store = store

    async def after_run(
        self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        await self.store.set(session.session_id, session)


def compacting_agent(*, history_first: bool = True, saver: SessionSaver | None = None) -> Agent:
    """Five iterations with a tool call each, of which two stay verbatim at the boundary."""
    history = InMemoryHistoryProvider(skip_excluded=True)
    compaction = CompactionProvider(after_strategy=ToolResultCompactionStrategy(keep_last_tool_call_groups=2))
    providers = in_order(history_first, history, compaction)
    return Agent(
        client=ScriptedChatClient(search_then_answer),
        tools=[search],
        context_providers=[saver, *providers] if saver else providers,
        middleware=[AgentLoopMiddleware(iterate(5), max_iterations=None)],
    )


async def load(store: FileSessionStore, session: AgentSession) -> AgentSession:
    loaded = await store.get(session.session_id)
    assert loaded is not None
    return loaded


# region T3: who saves


@pytest.mark.contract("T3")
@both_modes
@both_orders
@both_formats
async def test_a_turn_scoped_provider_saves_the_compacted_history(
    stream: bool, history_first: bool, serialization_format: Any, tmp_path: Path
) -> None:
    store = FileSessionStore(tmp_path, serialization_format=serialization_format)
    agent = compacting_agent(history_first=history_first, saver=SessionSaver(store))
    session = agent.create_session()

    await run_turn(agent, "task", stream=stream, session=session)

    assert flattened(stored_messages(await load(store, session))) == 3


@pytest.mark.contract("T3")
@both_modes
@both_orders
async def test_a_turn_scoped_provider_saves_only_once_and_only_the_finished_turn(
    stream: bool, history_first: bool, tmp_path: Path
) -> None:
    saved: list[int] = []

    class CountingStore(FileSessionStore):
        async def set(self, session_id: str, session: AgentSession) -> None:
            saved.append(len([message for message in stored_messages(session) if message.text.startswith("answer")]))
            await super().set(session_id, session)

    agent = compacting_agent(history_first=history_first, saver=SessionSaver(CountingStore(tmp_path)))

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert saved == [5]


@pytest.mark.contract("T3")
@both_orders
@both_formats
async def test_the_caller_saves_the_compacted_history_after_run(
    history_first: bool, serialization_format: Any, tmp_path: Path
) -> None:
    store = FileSessionStore(tmp_path, serialization_format=serialization_format)
    agent = compacting_agent(history_first=history_first)
    session = agent.create_session()

    await agent.run("task", session=session)
    await store.set(session.session_id, session)

    assert flattened(stored_messages(await load(store, session))) == 3


@pytest.mark.contract("T3")
@both_orders
@both_formats
async def test_the_caller_saves_the_compacted_history_after_the_stream(
    history_first: bool, serialization_format: Any, tmp_path: Path
) -> None:
    """After the iteration, without asking for the final response."""
    store = FileSessionStore(tmp_path, serialization_format=serialization_format)
    agent = compacting_agent(history_first=history_first)
    session = agent.create_session()

    async for _ in agent.run("task", stream=True, session=session):
        pass
    await store.set(session.session_id, session)

    assert flattened(stored_messages(await load(store, session))) == 3


# endregion
# region T3: who reads


def continue_in_another_process(storage_path: Path, session_id: str, serialization_format: str) -> Any:
    script = _turn_durability_child.__file__
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, str(storage_path), session_id, serialization_format],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.contract("T3")
@both_modes
@both_formats
async def test_a_second_process_continues_with_the_compacted_view(
    stream: bool, serialization_format: Any, tmp_path: Path
) -> None:
    store = FileSessionStore(tmp_path, serialization_format=serialization_format)
    agent = compacting_agent(saver=SessionSaver(store))
    session = agent.create_session()

    await run_turn(agent, "task", stream=stream, session=session)
    sent = continue_in_another_process(tmp_path, session.session_id, serialization_format)

    assert sent["flattened"] == 3
    assert sent["call_ids"] == ["call-7", "call-9"]
    assert sent["texts"][-1] == "go on"


# endregion
# region T12: what is in the file


@pytest.mark.contract("T12")
@both_modes
async def test_a_stored_session_has_nothing_in_it_that_an_unlooped_one_has_not(stream: bool, tmp_path: Path) -> None:
    """So that a release without the turn scope reads it: the same keys on every level, whatever wrote the session.

    A guard, green without the turn scope too.
    """

    async def keys_of(agent: Agent) -> set[str]:
        store = FileSessionStore(tmp_path)
        session = agent.create_session()
        await run_turn(agent, "task", stream=stream, session=session)
        await store.set(session.session_id, session)
        return paths(take_the_only_file(tmp_path))

    plain = compacting_agent(history_first=False)
    plain.middleware = []
    plain.client = ScriptedChatClient([
        *(call_tool("search", f"call-{number}", number=number) for number in (1, 3, 5, 7, 9)),
        "answer 10",
    ])

    assert await keys_of(compacting_agent(history_first=False)) == await keys_of(plain)


def take_the_only_file(folder: Path) -> Any:
    (file,) = folder.glob("*.json")
    stored = json.loads(file.read_bytes())
    file.unlink()
    return stored


def paths(value: Any, path: str = "") -> set[str]:
    """The keys of a JSON document with the path to each."""
    if isinstance(value, dict):
        return {path, *(found for key, item in value.items() for found in paths(item, f"{path}.{key}"))}
    if isinstance(value, list):
        return {path, *(found for item in value for found in paths(item, f"{path}[]"))}
    return {path}


# endregion
