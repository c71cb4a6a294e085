# Copyright (c) Microsoft. All rights reserved.

"""Agents that other packages bring keep working: released call shapes (T14), any agent in a loop (T13)."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from agent_framework import (
    Agent,
    AgentLoopMiddleware,
    AgentMiddlewareLayer,
    AgentResponse,
    AgentResponseUpdate,
    AgentSession,
    BaseAgent,
    Content,
    ContextProvider,
    InMemoryHistoryProvider,
    Message,
    RawAgent,
    ResponseStream,
    SessionContext,
    SupportsAgentRun,
    WorkflowAgent,
    WorkflowBuilder,
    WorkflowContext,
    executor,
)
from agent_framework._agents import _RunContext

from ._turn_scope_helpers import (
    RunRecorder,
    ScriptedChatClient,
    SelfRunningAgent,
    SelfRunningAgentWithMiddleware,
    TurnRecorder,
    both_modes,
    both_orders,
    in_order,
    iterate,
    run_turn,
)

both_call_sites = pytest.mark.parametrize("from_result_hook", [False, True], ids=["in_the_run", "in_a_result_hook"])


class OverridingAgent(Agent):
    """Overrides ``_run_after_providers`` with exactly the keywords that released packages override it with."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen_responses: list[str] = []

    async def _run_after_providers(self, *, session: AgentSession | None, context: SessionContext) -> None:
        if context.response is not None:
            self.seen_responses.append(context.response.text)
        await super()._run_after_providers(session=session, context=context)


# region T14: the call shapes of released packages


@pytest.mark.contract("T14")
@both_modes
@both_orders
async def test_an_override_with_the_released_keywords_takes_part_in_a_turn(stream: bool, history_first: bool) -> None:
    recorder = TurnRecorder()
    agent = OverridingAgent(
        client=ScriptedChatClient(),
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=[AgentLoopMiddleware(iterate(3), max_iterations=None)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert recorder.count == 1


@pytest.mark.contract("T14")
@both_modes
async def test_an_override_with_the_released_keywords_is_called_for_every_run(stream: bool) -> None:
    """An override may be called at the boundary as well; what it must not do is miss a run."""
    agent = OverridingAgent(
        client=ScriptedChatClient(["answer 1", "answer 2", "answer 3"]),
        context_providers=[InMemoryHistoryProvider(), TurnRecorder()],
        middleware=[AgentLoopMiddleware(iterate(3), max_iterations=None)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert agent.seen_responses[:3] == ["answer 1", "answer 2", "answer 3"]


@pytest.mark.contract("T14")
def test_run_after_providers_needs_the_released_keywords_and_no_others() -> None:
    """A guard, green without the turn scope too."""
    parameters = inspect.signature(BaseAgent._run_after_providers).parameters

    required = [name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty]

    assert required == ["self", "session", "context"]
    assert parameters["session"].kind is parameters["context"].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.contract("T14")
@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        (
            "_prepare_run_context",
            [
                "messages",
                "session",
                "tools",
                "options",
                "compaction_strategy",
                "tokenizer",
                "function_invocation_kwargs",
                "client_kwargs",
            ],
        ),
        ("_update_session_from_chat_response", ["session", "response"]),
        ("_update_session_from_chat_response_update", ["session", "update"]),
    ],
)
def test_the_seams_that_released_packages_override_keep_their_signatures(method: str, parameters: list[str]) -> None:
    """A guard, green without the turn scope too."""
    assert list(inspect.signature(getattr(RawAgent, method)).parameters) == ["self", *parameters]


@pytest.mark.contract("T14")
def test_the_run_context_of_released_packages_keeps_its_keys() -> None:
    """A guard, green without the turn scope too."""
    assert {
        "session",
        "session_context",
        "input_messages",
        "session_messages",
        "agent_name",
        "suppress_response_id",
        "chat_options",
        "compaction_strategy",
        "tokenizer",
        "client_kwargs",
        "function_invocation_kwargs",
    } <= set(_RunContext.__annotations__)


@pytest.mark.contract("T14")
@both_orders
async def test_a_call_outside_of_any_turn_is_its_own_boundary(history_first: bool) -> None:
    """The history is stored first and the turn-scoped provider fires, in this one call."""
    recorder = TurnRecorder()
    agent = SelfRunningAgent(context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder))
    session = agent.create_session()
    context = SessionContext(session_id=session.session_id, input_messages=[Message(role="user", contents=["task"])])
    context._response = AgentResponse(messages=[Message(role="assistant", contents=["answer"])])

    await agent._run_after_providers(session=session, context=context)

    assert [call.stored_texts for call in recorder.calls] == [["task", "answer"]]


@pytest.mark.contract("T14")
@both_modes
@both_orders
@both_call_sites
async def test_a_run_of_an_agent_with_its_own_run_loop_is_a_turn(
    stream: bool, history_first: bool, from_result_hook: bool
) -> None:
    recorder = TurnRecorder()
    agent = SelfRunningAgent(
        answers=["answer 1", "answer 2"],
        from_result_hook=from_result_hook,
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
    )
    session = agent.create_session()

    await run_turn(agent, "task 1", stream=stream, session=session)
    await run_turn(agent, "task 2", stream=stream, session=session)

    assert [call.stored_texts for call in recorder.calls] == [
        ["task 1", "answer 1"],
        ["task 1", "answer 1", "task 2", "answer 2"],
    ]


@pytest.mark.contract("T14")
@both_modes
@both_orders
@both_call_sites
async def test_a_looped_agent_with_its_own_run_loop_fires_once(
    stream: bool, history_first: bool, from_result_hook: bool
) -> None:
    recorder = TurnRecorder()
    run_scoped = RunRecorder()
    agent = SelfRunningAgentWithMiddleware(
        from_result_hook=from_result_hook,
        context_providers=[run_scoped, *in_order(history_first, InMemoryHistoryProvider(), recorder)],
        middleware=[AgentLoopMiddleware(iterate(3), max_iterations=None)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert (agent.runs, run_scoped.count, recorder.count) == (3, 3, 1)


@pytest.mark.contract("T14")
@both_modes
@both_orders
async def test_a_run_of_a_raw_agent_is_a_turn(stream: bool, history_first: bool) -> None:
    """Without the middleware layer there is no owner but the run itself."""
    recorder = TurnRecorder()
    agent = RawAgent(
        client=ScriptedChatClient(["answer"]),
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert [call.stored_texts for call in recorder.calls] == [["task", "answer"]]


@pytest.mark.contract("T14")
@both_modes
@both_orders
async def test_a_run_of_a_workflow_agent_is_a_turn(stream: bool, history_first: bool) -> None:
    recorder = TurnRecorder()
    agent = echo_workflow_agent(in_order(history_first, InMemoryHistoryProvider(), recorder))
    session = agent.create_session()

    await run_turn(agent, "task", stream=stream, session=session)

    assert [call.stored_texts for call in recorder.calls] == [["task", "echo: task"]]


class RefusingAgent(BaseAgent):
    """Raises where ``run()`` is called, before there is anything to await."""

    def run(self, messages: Any = None, *, stream: bool = False, session: Any = None, **kwargs: Any) -> Any:
        raise ValueError("no such agent")


class RefusingAgentWithMiddleware(AgentMiddlewareLayer, RefusingAgent):
    """The same agent behind the middleware layer."""


@pytest.mark.contract("T14")
@both_modes
def test_an_agent_whose_run_raises_at_the_call_still_does(stream: bool) -> None:
    """A guard, green without the turn scope too."""
    agent = RefusingAgentWithMiddleware()

    with pytest.raises(ValueError, match="no such agent"):
        agent.run("task", stream=stream)


def echo_workflow_agent(context_providers: list[ContextProvider]) -> WorkflowAgent:
    @executor(id="echo")
    async def echo(messages: list[Message], ctx: WorkflowContext[Any, AgentResponse]) -> None:
        await ctx.yield_output(
            AgentResponse(messages=[Message(role="assistant", contents=[f"echo: {messages[-1].text}"])])
        )

    workflow = WorkflowBuilder(start_executor=echo, output_from=[echo]).build()
    return WorkflowAgent(workflow, context_providers=context_providers)


# endregion
# region T13: any agent can be looped


class ClosedSdk:
    """An SDK whose calls take what they name and nothing else."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def send(self, prompt: str, *, model: str | None = None, timeout: float | None = None) -> str:
        self.calls.append({"model": model, "timeout": timeout})
        return f"answer to {prompt}"


class ForwardingAgent(SelfRunningAgent):
    """Forwards its run options to the SDK, as the released GitHub Copilot agent does."""

    def __init__(self, sdk: ClosedSdk, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sdk = sdk

    async def _answer(self, session: Any, context: SessionContext, options: Any) -> Message:
        await super()._answer(session, context, options)
        return Message(
            role="assistant",
            contents=[self.sdk.send(context.input_messages[-1].text, **(options or {}))],
            message_id=f"answer-{id(self)}-{self.runs}",
        )


class ForwardingAgentWithMiddleware(AgentMiddlewareLayer, ForwardingAgent):
    """The same agent behind the middleware layer."""


class MinimalAgent:
    """Satisfies ``SupportsAgentRun`` and knows nothing of context providers."""

    def __init__(self, middleware: Any = None) -> None:
        self.id, self.name, self.description = "minimal", "minimal", None
        self.runs = 0

    def run(self, messages: Any = None, *, stream: bool = False, session: Any = None, **kwargs: Any) -> Any:
        self.runs += 1
        message = Message(role="assistant", contents=[f"answer {self.runs}"])

        async def updates() -> Any:
            yield AgentResponseUpdate(contents=message.contents, role=message.role)

        async def respond() -> AgentResponse:
            return AgentResponse(messages=[message])

        return ResponseStream(updates(), finalizer=AgentResponse.from_updates) if stream else respond()

    def create_session(self, *, session_id: str | None = None) -> AgentSession:
        return AgentSession(session_id=session_id)

    def get_session(self, service_session_id: str, *, session_id: str | None = None) -> AgentSession:
        return AgentSession(service_session_id=service_session_id, session_id=session_id)


class MinimalLoopedAgent(AgentMiddlewareLayer, MinimalAgent):
    """The middleware layer around an agent that is no ``BaseAgent``."""

    def __init__(self, middleware: Any) -> None:
        super().__init__(middleware=middleware)
        self.middleware = middleware


class GeneratingAgent(BaseAgent):
    """Streams a plain async generator, no ``ResponseStream``."""

    def run(self, messages: Any = None, *, stream: bool = False, session: Any = None, **kwargs: Any) -> Any:
        async def updates() -> Any:
            for text in ("answer", " goes on"):
                yield AgentResponseUpdate(contents=[Content.from_text(text)], role="assistant")

        async def respond() -> AgentResponse:
            return AgentResponse(messages=[Message(role="assistant", contents=["answer goes on"])])

        return updates() if stream else respond()


class GeneratingAgentWithMiddleware(AgentMiddlewareLayer, GeneratingAgent):
    """The same agent behind the middleware layer."""


@pytest.mark.contract("T13")
@pytest.mark.parametrize("with_session", [True, False], ids=["with_session", "without_session"])
async def test_an_agent_that_streams_a_plain_generator_works_behind_the_middleware_layer(with_session: bool) -> None:
    """A guard, green without the turn scope too."""
    agent = GeneratingAgentWithMiddleware()
    session = agent.create_session() if with_session else None

    streamed = [update.text async for update in agent.run("task", stream=True, session=session)]

    assert streamed == ["answer", " goes on"]


@pytest.mark.contract("T13")
@both_modes
async def test_an_agent_that_forwards_its_options_to_a_closed_sdk_can_be_looped(stream: bool) -> None:
    sdk = ClosedSdk()
    recorder = TurnRecorder()
    agent = ForwardingAgentWithMiddleware(
        sdk,
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[AgentLoopMiddleware(iterate(3), max_iterations=None)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session(), options={"model": "best"})

    assert sdk.calls == [{"model": "best", "timeout": None}] * 3


@pytest.mark.contract("T13")
@both_modes
async def test_an_agent_that_forwards_its_options_fires_once(stream: bool) -> None:
    recorder = TurnRecorder()
    agent = ForwardingAgentWithMiddleware(
        ClosedSdk(),
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[AgentLoopMiddleware(iterate(3), max_iterations=None)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session(), options={"model": "best"})

    assert recorder.count == 1


@pytest.mark.contract("T13")
@both_modes
async def test_an_agent_without_context_providers_can_be_looped(stream: bool) -> None:
    """A guard, green without the turn scope too."""
    agent = SelfRunningAgentWithMiddleware(middleware=[AgentLoopMiddleware(iterate(3), max_iterations=None)])

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert agent.runs == 3


@pytest.mark.contract("T13")
@pytest.mark.parametrize("with_session", [True, False], ids=["with_session", "without_session"])
@both_modes
async def test_an_agent_that_is_no_base_agent_can_be_looped(stream: bool, with_session: bool) -> None:
    """A guard, green without the turn scope too."""
    agent = MinimalLoopedAgent(middleware=[AgentLoopMiddleware(iterate(3), max_iterations=None)])

    response = await run_turn(agent, "task", stream=stream, session=agent.create_session() if with_session else None)

    assert isinstance(agent, SupportsAgentRun)
    assert agent.runs == 3
    assert response.messages[-1].text == "answer 3"


@pytest.mark.contract("T13")
@both_modes
async def test_an_agent_that_only_lists_context_providers_can_be_looped(stream: bool) -> None:
    """A guard, green without the turn scope too: the attribute alone does not make it run them."""
    agent = MinimalLoopedAgent(middleware=[AgentLoopMiddleware(iterate(2), max_iterations=None)])
    recorder = TurnRecorder()
    agent.context_providers = [recorder]  # type: ignore[attr-defined]

    response = await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert response.messages[-1].text == "answer 2"
    assert recorder.count == 0


# endregion
