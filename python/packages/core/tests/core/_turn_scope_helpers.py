# Copyright (c) Microsoft. All rights reserved.

"""Scripted parts that the tests of the turn contract are made of."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pytest

from agent_framework import (
    AgentMiddlewareLayer,
    AgentResponse,
    AgentResponseUpdate,
    AgentSession,
    BaseAgent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    ContextProvider,
    FunctionInvocationLayer,
    HistoryProvider,
    InMemoryHistoryProvider,
    Message,
    ResponseStream,
    SessionContext,
    normalize_messages,
)
from agent_framework.observability import ChatTelemetryLayer

both_modes = pytest.mark.parametrize("stream", [False, True], ids=["non_streaming", "streaming"])
both_orders = pytest.mark.parametrize("history_first", [True, False], ids=["history_first", "history_last"])

# What a script answers a model call with: text, contents, a whole response, or an error to raise.
Reply: TypeAlias = "str | Content | Sequence[str | Content] | ChatResponse | BaseException"
Script: TypeAlias = "Callable[[int, list[Message]], Reply | Awaitable[Reply]] | Sequence[Reply]"


@dataclass
class ModelRequest:
    """One model call as the client received it."""

    messages: list[Message]
    options: dict[str, Any]

    @property
    def texts(self) -> list[str]:
        return [message.text for message in self.messages if message.text]


class ScriptedChatClient(FunctionInvocationLayer, ChatMiddlewareLayer, ChatTelemetryLayer, BaseChatClient):
    """Answers model call ``n`` (1-based) from a script and records what it was asked.

    A sequence runs through its replies and repeats the last one; a callable gets the call number and the messages.
    When streaming, every content of a reply is an update of its own.
    """

    def __init__(self, script: Script = ("done",), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._script = script
        self.requests: list[ModelRequest] = []

    @property
    def calls(self) -> int:
        return len(self.requests)

    async def _reply(self, messages: Sequence[Message], options: Mapping[str, Any]) -> ChatResponse:
        self.requests.append(ModelRequest(messages=list(messages), options=dict(options)))
        reply: Any
        if callable(self._script):
            reply = self._script(self.calls, list(messages))
            if inspect.isawaitable(reply):
                reply = await reply
        else:
            reply = self._script[min(self.calls, len(self._script)) - 1]
        if isinstance(reply, BaseException):
            raise reply
        if isinstance(reply, ChatResponse):
            return reply
        contents = [reply] if isinstance(reply, (str, Content)) else list(reply)
        return ChatResponse(
            messages=[
                Message(
                    role="assistant",
                    contents=[Content.from_text(item) if isinstance(item, str) else item for item in contents],
                    message_id=f"answer-{id(self)}-{self.calls}",
                )
            ]
        )

    def _inner_get_response(
        self,
        *,
        messages: Sequence[Message],
        stream: bool,
        options: Mapping[str, Any],
        **kwargs: Any,
    ) -> Awaitable[ChatResponse] | ResponseStream[ChatResponseUpdate, ChatResponse]:
        if not stream:
            return self._reply(messages, options)

        async def _updates() -> AsyncIterable[ChatResponseUpdate]:
            response = await self._reply(messages, options)
            for message in response.messages:
                for content in message.contents:
                    yield ChatResponseUpdate(
                        contents=[content],
                        role=message.role,
                        message_id=message.message_id,
                        conversation_id=response.conversation_id,
                        continuation_token=response.continuation_token,
                    )

        return ResponseStream(_updates(), finalizer=ChatResponse.from_updates)


@dataclass
class AfterRun:
    """One ``after_run`` call as a provider received it."""

    provider: ContextProvider
    agent: Any
    session: AgentSession
    context: SessionContext
    state: dict[str, Any]
    # Copies, because what they were copied from goes on changing.
    turn_state: str | None
    response: AgentResponse | None
    input_texts: list[str]
    options: dict[str, Any]
    stored_texts: list[str]

    @property
    def answers(self) -> list[str]:
        """The texts of the response's assistant messages."""
        assert self.response is not None, "the context has no response"
        return texts([message for message in self.response.messages if message.role == "assistant"])


class RunRecorder(ContextProvider):
    """A run-scoped provider that records its ``after_run`` calls, and can be told to raise."""

    def __init__(
        self,
        source_id: str = "run_recorder",
        *,
        events: list[str] | None = None,
        error: BaseException | None = None,
    ) -> None:
        super().__init__(source_id)
        self.events = events if events is not None else []
        self.error = error
        self.calls: list[AfterRun] = []

    @property
    def count(self) -> int:
        return len(self.calls)

    async def after_run(
        self,
        *,
        agent: Any,
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],
    ) -> None:
        self.events.append(self.source_id)
        self.calls.append(
            AfterRun(
                provider=self,
                agent=agent,
                session=session,
                context=context,
                state=state,
                turn_state=getattr(context, "turn_state", None),
                response=context.response,
                input_texts=texts(context.input_messages),
                options=dict(context.options),
                stored_texts=texts(stored_messages(session)),
            )
        )
        if self.error is not None:
            raise self.error


class TurnRecorder(RunRecorder):
    """A turn-scoped provider that records its ``after_run`` calls, and can be told to raise."""

    after_run_once_per_turn = True

    def __init__(self, source_id: str = "turn_recorder", **kwargs: Any) -> None:
        super().__init__(source_id, **kwargs)

    @property
    def boundary(self) -> AfterRun:
        """The one call of a test that runs one turn."""
        assert self.count == 1, f"after_run fired {self.count} times in this turn"
        return self.calls[0]


class SelfRunningAgent(BaseAgent):
    """An agent with a run loop of its own that knows ``_run_after_providers(session=..., context=...)`` and no more.

    Streaming it calls that at the end of its generator, or from a result hook with ``from_result_hook``: the released
    A2A agent does the one, the released GitHub Copilot agent the other.
    """

    def __init__(
        self,
        *,
        answers: Sequence[str] = ("done",),
        from_result_hook: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.answers = list(answers)
        self.from_result_hook = from_result_hook
        self.runs = 0
        self.received_options: list[dict[str, Any]] = []

    def run(
        self,
        messages: Any = None,
        *,
        stream: bool = False,
        session: AgentSession | None = None,
        options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Awaitable[AgentResponse] | ResponseStream[AgentResponseUpdate, AgentResponse]:
        run_session = session
        if run_session is None and self.context_providers:
            run_session = AgentSession()
        context = SessionContext(
            session_id=run_session.session_id if run_session else None,
            input_messages=normalize_messages(messages),
            options={},
        )
        if not stream:
            return self._run(run_session, context, options)

        async def _after_run(response: AgentResponse) -> None:
            context._response = response
            await self._run_after_providers(session=run_session, context=context)

        return ResponseStream(
            self._stream(run_session, context, options),
            finalizer=AgentResponse.from_updates,
            result_hooks=[_after_run] if self.from_result_hook else None,
        )

    async def _run(
        self, session: AgentSession | None, context: SessionContext, options: Mapping[str, Any] | None
    ) -> AgentResponse:
        context._response = AgentResponse(messages=[await self._answer(session, context, options)])
        await self._run_after_providers(session=session, context=context)
        return context._response

    async def _stream(
        self, session: AgentSession | None, context: SessionContext, options: Mapping[str, Any] | None
    ) -> AsyncIterable[AgentResponseUpdate]:
        message = await self._answer(session, context, options)
        yield AgentResponseUpdate(contents=message.contents, role=message.role, message_id=message.message_id)
        if not self.from_result_hook:
            context._response = AgentResponse(messages=[message])
            await self._run_after_providers(session=session, context=context)

    async def _answer(
        self, session: AgentSession | None, context: SessionContext, options: Mapping[str, Any] | None
    ) -> Message:
        for provider in self.context_providers:
            if isinstance(provider, HistoryProvider) and not provider.load_messages:
                continue
            assert session is not None
            await provider.before_run(
                agent=self,  # type: ignore[arg-type]
                session=session,
                context=context,
                state=session.state.setdefault(provider.source_id, {}),
            )
        self.received_options.append(dict(options or {}))
        answer = self.answers[min(self.runs, len(self.answers) - 1)]
        self.runs += 1
        return Message(role="assistant", contents=[answer], message_id=f"answer-{id(self)}-{self.runs}")


class SelfRunningAgentWithMiddleware(AgentMiddlewareLayer, SelfRunningAgent):
    """The same agent behind the middleware layer, so that it can be looped."""


@dataclass
class CompactionProbe:
    """An after-strategy that records the stored messages it was given, and changes nothing."""

    events: list[str] = field(default_factory=list)
    seen: list[list[str]] = field(default_factory=list)

    async def __call__(self, messages: list[Message]) -> bool:
        self.seen.append(texts(messages))
        self.events.append("compaction")
        return False


def in_order(history_first: bool, history: ContextProvider, turn_scoped: ContextProvider) -> list[ContextProvider]:
    """The two providers in the order under test."""
    return [history, turn_scoped] if history_first else [turn_scoped, history]


def stored_messages(session: AgentSession | None, source_id: str = InMemoryHistoryProvider.DEFAULT_SOURCE_ID) -> Any:
    """The messages that the in-memory history of ``session`` holds, excluded ones too."""
    if session is None:
        return []
    return list((session.state.get(source_id) or {}).get("messages") or [])


def texts(messages: Sequence[Message]) -> list[str]:
    """The texts of ``messages``, without those that have none."""
    return [message.text for message in messages if message.text]


def flattened(messages: Sequence[Message]) -> int:
    """How many tool-call groups were replaced by the text that ``ToolResultCompactionStrategy`` writes for them."""
    return sum(message.role == "assistant" and message.text.startswith("[Tool results:") for message in messages)


def call_tool(name: str, call_id: str, **arguments: Any) -> Content:
    """A model's request to call the tool ``name``."""
    return Content.from_function_call(call_id=call_id, name=name, arguments=arguments)


async def run_turn(agent: Any, messages: Any, *, stream: bool, **kwargs: Any) -> AgentResponse:
    """Run one user turn to its end in either mode, as a caller does."""
    if not stream:
        return await agent.run(messages, **kwargs)
    response_stream = agent.run(messages, stream=True, **kwargs)
    async for _ in response_stream:
        pass
    return await response_stream.get_final_response()


def iterate(times: int) -> Callable[..., bool]:
    """A ``should_continue`` that asks for ``times`` iterations in all."""

    def should_continue(*, iteration: int, **kwargs: Any) -> bool:
        return iteration < times

    return should_continue


def call_tools_then_answer(name: str, times: int) -> Callable[[int, list[Message]], Reply]:
    """A script that asks for the tool ``name`` in ``times`` model calls and answers in every later one."""

    def script(call: int, messages: list[Message]) -> Reply:
        return call_tool(name, f"call-{call}", number=call) if call <= times else f"answer {call}"

    return script


def requests_of(response: AgentResponse) -> list[Content]:
    """The contents of ``response`` that ask the user for something."""
    return [content for message in response.messages for content in message.contents if content.user_input_request]


def answer_to(*requests: Content, approved: bool = True) -> Message:
    """The user's answer to approval requests."""
    return Message(
        role="user", contents=[request.to_function_approval_response(approved=approved) for request in requests]
    )


async def settle() -> None:
    """Let everything run that an abandoned turn may have left behind, to the garbage collector too."""
    await asyncio.sleep(0)
    gc.collect()
    for _ in range(10):
        await asyncio.sleep(0)
