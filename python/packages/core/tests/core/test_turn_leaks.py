# Copyright (c) Microsoft. All rights reserved.

"""The turn scope leaves no marker in anything that is not its own (T12)."""

from __future__ import annotations

import copy
import json
from collections.abc import Awaitable, Callable, Generator, Mapping
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agent_framework import (
    Agent,
    AgentContext,
    AgentLoopMiddleware,
    AgentMiddleware,
    AgentSession,
    ContextProvider,
    FunctionInvocationContext,
    InMemoryHistoryProvider,
    SessionContext,
    tool,
)

from ._turn_scope_helpers import (
    RunRecorder,
    ScriptedChatClient,
    TurnRecorder,
    both_modes,
    call_tools_then_answer,
    iterate,
    run_turn,
)


class SeenOptions(AgentMiddleware):
    """Records the options of every run that it is in front of."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
        self.seen.append(dict(context.options or {}))
        await call_next()


class ReplaceOptions(AgentMiddleware):
    """Puts other options in the place of the ones it gets, before every run."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
        context.options = self.make()
        await call_next()


class OptionsBeforeRun(ContextProvider):
    """Records what ``SessionContext.options`` holds before every run."""

    def __init__(self) -> None:
        super().__init__("options_before_run")
        self.seen: list[dict[str, Any]] = []

    async def before_run(
        self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        self.seen.append(dict(context.options))


def looped(client: ScriptedChatClient, *providers: ContextProvider, times: int = 2, **kwargs: Any) -> Agent:
    middleware = [AgentLoopMiddleware(iterate(times), max_iterations=None), *kwargs.pop("middleware", [])]
    context_providers = [InMemoryHistoryProvider(), *providers]
    return Agent(client=client, context_providers=context_providers, middleware=middleware, **kwargs)


# region T12: options


@pytest.mark.contract("T12")
@both_modes
async def test_no_marker_in_the_options_that_middleware_sees(stream: bool) -> None:
    seen = SeenOptions()
    agent = looped(ScriptedChatClient(), TurnRecorder(), middleware=[seen])

    await run_turn(agent, "task", stream=stream, session=agent.create_session(), options={"custom": 1})

    assert seen.seen == [{"custom": 1}, {"custom": 1}]


@pytest.mark.contract("T12")
@both_modes
async def test_no_marker_in_the_options_that_providers_see(stream: bool) -> None:
    before, run_scoped, turn_scoped = OptionsBeforeRun(), RunRecorder(), TurnRecorder()
    agent = looped(ScriptedChatClient(), before, run_scoped, turn_scoped)

    await run_turn(agent, "task", stream=stream, session=agent.create_session(), options={"custom": 1})

    after = [call.options for call in (*run_scoped.calls, *turn_scoped.calls)]
    assert before.seen == [{"custom": 1}] * 2
    assert after == [{"custom": 1}] * len(after)


@pytest.mark.contract("T12")
@both_modes
async def test_no_marker_in_the_options_of_the_client(stream: bool) -> None:
    """The options of every service call of a turn are those of a plain run of an agent without providers."""
    plain_client, client = ScriptedChatClient(), ScriptedChatClient()
    plain = Agent(client=plain_client)
    agent = looped(client, TurnRecorder())

    await run_turn(plain, "task", stream=stream, session=plain.create_session(), options={"custom": 1})
    await run_turn(agent, "task", stream=stream, session=agent.create_session(), options={"custom": 1})

    assert [request.options for request in client.requests] == [plain_client.requests[0].options] * 2


@pytest.mark.contract("T12")
@both_modes
async def test_the_dictionaries_of_the_caller_are_left_as_they_were(stream: bool) -> None:
    """During the turn as well as after it."""
    options: Any = {"custom": 1, "metadata": {"user": "me"}}
    client_kwargs: dict[str, Any] = {"custom": 2}
    function_invocation_kwargs: dict[str, Any] = {"custom": 3}
    arguments = {
        "options": options,
        "client_kwargs": client_kwargs,
        "function_invocation_kwargs": function_invocation_kwargs,
    }
    before = copy.deepcopy(arguments)
    during: list[Any] = []

    def script(call: int, messages: list[Any]) -> str:
        during.append(copy.deepcopy(arguments))
        return "done"

    agent = looped(ScriptedChatClient(script), TurnRecorder())

    await run_turn(agent, "task", stream=stream, session=agent.create_session(), **arguments)

    assert during == [before, before]
    assert arguments == before


@pytest.mark.contract("T12")
@pytest.mark.parametrize(
    "make",
    [lambda: None, lambda: {"custom": 1}, lambda: MappingProxyType({"custom": 1})],
    ids=["none", "fresh_dict", "read_only_mapping"],
)
@pytest.mark.parametrize("outside", [False, True], ids=["inside_the_loop", "outside_the_loop"])
@both_modes
async def test_a_middleware_may_replace_the_options(stream: bool, outside: bool, make: Callable[[], Any]) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient()
    loop = AgentLoopMiddleware(iterate(3), max_iterations=None)
    replace = ReplaceOptions(make)
    agent = Agent(
        client=client,
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[replace, loop] if outside else [loop, replace],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session(), options={"custom": 0})

    assert client.calls == 3
    assert recorder.count == 1


@pytest.mark.contract("T7")
@pytest.mark.contract("T12")
@both_modes
async def test_options_forwarded_to_another_agent_do_not_suppress_its_hooks(stream: bool) -> None:
    """On a session of its own the other agent's run is a turn of its own."""
    others = TurnRecorder("others")
    other = Agent(client=ScriptedChatClient(), context_providers=[InMemoryHistoryProvider(), others])

    class AskAnotherAgent(AgentMiddleware):
        async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
            await other.run("question", session=other.create_session(), options=context.options)  # type: ignore[arg-type]
            await call_next()

    agent = looped(ScriptedChatClient(), TurnRecorder(), middleware=[AskAnotherAgent()])

    await run_turn(agent, "task", stream=stream, session=agent.create_session(), options={"custom": 1})

    assert others.count == 2


# endregion
# region T12: everything else


@pytest.mark.contract("T12")
@both_modes
async def test_no_marker_in_what_a_tool_gets(stream: bool) -> None:
    """A tool of a looped turn gets what a tool of a plain run gets."""
    seen: list[dict[str, list[str]]] = []

    @tool(approval_mode="never_require")
    def observe(number: int, ctx: FunctionInvocationContext) -> str:
        """Record the invocation context."""
        seen.append({
            "kwargs": sorted(ctx.kwargs),
            "metadata": sorted(ctx.metadata),
            "arguments": sorted(dict(ctx.arguments)),
        })
        return "ok"

    plain = Agent(client=ScriptedChatClient(call_tools_then_answer("observe", 1)), tools=[observe])
    agent = looped(ScriptedChatClient(call_tools_then_answer("observe", 1)), TurnRecorder(), tools=[observe])
    function_invocation_kwargs = {"custom": 1}

    await run_turn(
        plain,
        "task",
        stream=stream,
        session=plain.create_session(),
        function_invocation_kwargs=function_invocation_kwargs,
    )
    await run_turn(
        agent,
        "task",
        stream=stream,
        session=agent.create_session(),
        function_invocation_kwargs=function_invocation_kwargs,
    )

    plain_run, looped_run = seen
    assert looped_run == plain_run


@pytest.mark.contract("T12")
@both_modes
async def test_no_marker_in_the_session_state(stream: bool) -> None:
    """Neither during the turn nor after it: every key belongs to a provider, and a provider's own state is its own."""
    keys: list[dict[str, list[str]]] = []
    recorder = TurnRecorder()

    def describe(session: AgentSession) -> dict[str, list[str]]:
        return {key: sorted(value) for key, value in session.state.items()}

    def should_continue(*, iteration: int, session: AgentSession, **kwargs: Any) -> bool:
        keys.append(describe(session))
        return iteration < 2

    agent = Agent(
        client=ScriptedChatClient(),
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[AgentLoopMiddleware(should_continue, max_iterations=None)],
    )
    session = agent.create_session()

    await run_turn(agent, "task", stream=stream, session=session)
    keys.append(describe(session))

    assert keys == [{"in_memory": ["messages"], "turn_recorder": []}] * 3
    assert set(session.to_dict()) == {"type", "session_id", "service_session_id", "state"}
    json.dumps(session.to_dict())


@pytest.fixture
def spans() -> Generator[InMemorySpanExporter, None, None]:
    """The spans of the test, whatever tracer provider the process has."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with patch(
        "agent_framework.observability.get_tracer", side_effect=lambda *args, **kwargs: provider.get_tracer("test")
    ):
        yield exporter


@pytest.mark.contract("T12")
@both_modes
async def test_no_marker_in_the_telemetry(stream: bool, spans: InMemorySpanExporter) -> None:
    """A turn with a turn-scoped provider leaves the spans that one with a run-scoped provider leaves."""

    async def spans_of(provider: ContextProvider) -> list[tuple[str, list[str]]]:
        spans.clear()
        agent = looped(ScriptedChatClient(), provider)
        await run_turn(agent, "task", stream=stream, session=agent.create_session(), options={"custom": 1})
        return [(span.name.split(" ")[0], sorted(attributes(span.attributes))) for span in spans.get_finished_spans()]

    def attributes(mapping: Mapping[str, Any] | None) -> Mapping[str, Any]:
        return mapping or {}

    expected = await spans_of(RunRecorder())

    assert {name for name, _ in expected} == {"invoke_agent", "chat"}
    assert await spans_of(TurnRecorder()) == expected


# endregion
