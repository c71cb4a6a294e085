# Copyright (c) Microsoft. All rights reserved.

"""Scripted clients, history stores and readings of a history, shared by the ``test_compaction_*`` modules.

Every message of a scripted conversation carries one marker, for example ``[[u2]]`` for the user's second input. What
is kept, sent, stored or summarized is then told by the markers alone, whatever ids and annotations a message has.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import agent_framework
from agent_framework import (
    EXCLUDED_KEY,
    GROUP_ANNOTATION_KEY,
    SUMMARIZED_BY_SUMMARY_ID_KEY,
    SUMMARY_OF_MESSAGE_IDS_KEY,
    Agent,
    AgentResponse,
    AgentSession,
    BaseChatClient,
    CharacterEstimatorTokenizer,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    CompactionProvider,
    Content,
    ContextWindowCompactionStrategy,
    FileHistoryProvider,
    FunctionInvocationLayer,
    FunctionTool,
    HistoryProvider,
    InMemoryHistoryProvider,
    Message,
    ResponseStream,
    SelectiveToolCallCompactionStrategy,
    SlidingWindowStrategy,
    SummarizationStrategy,
    TokenBudgetComposedStrategy,
    ToolResultCompactionStrategy,
    TruncationStrategy,
    tool,
)

# region Axes

both_modes = pytest.mark.parametrize("streaming", [False, True], ids=["non_streaming", "streaming"])
both_persistences = pytest.mark.parametrize("per_call", [False, True], ids=["per_run", "per_call"])
own_stores = pytest.mark.parametrize("store_kind", ["memory", "file"])
all_stores = pytest.mark.parametrize("store_kind", ["memory", "file", "msgpack", "serialising"])


def every_axis(test: Any) -> Any:
    """Run a test streaming and not, in memory and file, with per-run and per-service-call persistence."""
    return both_modes(own_stores(both_persistences(test)))


def new_name(name: str) -> Any:
    """Return a public name that the contract introduces, failing the test in its call phase where it is missing."""
    value = getattr(agent_framework, name, None)
    if value is None:
        pytest.fail(f"agent_framework has no {name!r}")
    return value


def project(messages: list[Message]) -> list[Message]:
    """Project a list with the library's ``project_included_messages``."""
    from agent_framework._compaction import project_included_messages

    return project_included_messages(messages)


# endregion

# region Messages

_MARKER = re.compile(r"\[\[([^\[\]]+)\]\]")
_SUMMARY = re.compile(r"<summary (\d+)>")


def user(marker: str, *, message_id: str | None = None) -> Message:
    return Message("user", [f"[[{marker}]] please"], message_id=message_id)


def say(marker: str, *, message_id: str | None = None) -> Message:
    return Message("assistant", [f"[[{marker}]] there you are"], message_id=message_id)


def call(*steps: str, message_id: str | None = None) -> Message:
    """Return an assistant message that calls the ``work`` tool once for each step."""
    return Message(
        "assistant",
        [
            Content.from_function_call(call_id=f"call-{step}", name="work", arguments=json.dumps({"step": f"c{step}"}))
            for step in steps
        ],
        message_id=message_id,
    )


def result(*steps: str, message_id: str | None = None) -> Message:
    return Message(
        "tool",
        [Content.from_function_result(call_id=f"call-{step}", result=f"[[r{step}]] done") for step in steps],
        message_id=message_id,
    )


def work_tool(*, result_size: int = 0) -> FunctionTool:
    """Return the tool that scripted calls name; a step ``c1.2`` has the result ``[[r1.2]]``."""

    @tool(approval_mode="never_require")
    def work(step: str) -> str:
        """Do one step of work."""
        return f"[[r{step[1:]}]] done{'.' * result_size}"

    return work


def text_of(message: Message) -> str:
    """Return everything a model would read in a message."""
    parts: list[str] = []
    for content in message.contents:
        if content.type == "function_call":
            arguments = content.arguments
            parts.append(arguments if isinstance(arguments, str) else json.dumps(arguments))
        elif content.type == "function_result":
            parts.append(content.result if isinstance(content.result, str) else json.dumps(content.result))
        elif content.text:
            parts.append(content.text)
    return "\n".join(parts)


def markers_in(text: str) -> list[str]:
    """Return the markers in a text; the arguments of a call to ``work`` are its marker."""
    return [*_MARKER.findall(text), *re.findall(r"\"step\": ?\"(c[^\"]+)\"", text)]


def markers(messages: Iterable[Message]) -> list[str]:
    return [marker for message in messages for marker in markers_in(text_of(message))]


def without_summaries(messages: Iterable[Message]) -> list[Message]:
    return [message for message in messages if not summary_of(message)]


def annotation(message: Message) -> Mapping[str, Any]:
    value = message.additional_properties.get(GROUP_ANNOTATION_KEY)
    return value if isinstance(value, Mapping) else {}


def summary_of(message: Message) -> list[str]:
    """Return the ids of the messages that a summary names, or an empty list."""
    return list(annotation(message).get(SUMMARY_OF_MESSAGE_IDS_KEY) or [])


def summarized_by(message: Message) -> str | None:
    return annotation(message).get(SUMMARIZED_BY_SUMMARY_ID_KEY)


def is_excluded(message: Message) -> bool:
    return message.additional_properties.get(EXCLUDED_KEY) is True


def is_dropped(message: Message) -> bool:
    """Tell whether a strategy that does not summarize has excluded a message, which may be a summary."""
    return is_excluded(message) and summarized_by(message) is None


def summary_message(message_id: str, covers: Sequence[str], text: str = "summary", role: str = "assistant") -> Message:
    return Message(
        role,
        [text],
        message_id=message_id,
        additional_properties={GROUP_ANNOTATION_KEY: {SUMMARY_OF_MESSAGE_IDS_KEY: list(covers)}},
    )


def cover(message: Message, summary_id: str) -> Message:
    """Mark a message as a summarizing strategy does."""
    message.additional_properties[GROUP_ANNOTATION_KEY] = {
        **annotation(message),
        SUMMARIZED_BY_SUMMARY_ID_KEY: summary_id,
    }
    message.additional_properties[EXCLUDED_KEY] = True
    return message


# endregion

# region Clients


class ScriptedChatClient(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """Chat client that answers from a script and keeps a copy of every request.

    A scripted reply is a message, an exception to raise, or a callable that is given the request.
    """

    def __init__(
        self, replies: Iterable[Any] = (), *, keep_requests: bool = True, max_iterations: int = 2000, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.function_invocation_configuration["max_iterations"] = max_iterations
        self.replies = list(replies)
        self.requests: list[list[Message]] = []
        self.request_sizes: list[int] = []
        self._keep_requests = keep_requests

    def script(self, *replies: Any) -> None:
        self.replies.extend(replies)

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Awaitable[ChatResponse] | ResponseStream[ChatResponseUpdate, ChatResponse]:
        self.request_sizes.append(len(messages))
        if self._keep_requests:
            self.requests.append(copy.deepcopy(list(messages)))
        reply = self.replies.pop(0)
        if callable(reply):
            reply = reply(messages)

        if not stream:

            async def _get() -> ChatResponse:
                if isinstance(reply, BaseException):
                    raise reply
                return ChatResponse(messages=[copy.deepcopy(reply)])

            return _get()

        async def _stream() -> AsyncIterable[ChatResponseUpdate]:
            if isinstance(reply, BaseException):
                raise reply
            for content in copy.deepcopy(reply.contents):
                yield ChatResponseUpdate(contents=[content], role=reply.role, message_id=reply.message_id)

        return self._build_response_stream(_stream())


class Summarizer:
    """Client of a ``SummarizationStrategy`` that counts what it reads and answers ``<summary n>``."""

    def __init__(self, *, fail_on: Callable[[int], bool] = lambda number: False) -> None:
        self.inputs: list[str] = []
        self._fail_on = fail_on
        self.additional_properties: dict[str, Any] = {}

    async def get_response(self, messages: Sequence[Message], *, stream: bool = False, **kwargs: Any) -> ChatResponse:
        text = "\n".join(text_of(message) for message in messages[1:])
        if self._fail_on(len(self.inputs) + 1):
            self.inputs.append("")
            raise RuntimeError("the summarizer is away")
        self.inputs.append(text)
        return ChatResponse(messages=[Message("assistant", [f"<summary {len(self.inputs)}>"])])

    @property
    def characters(self) -> int:
        return sum(len(text) for text in self.inputs)

    def times_read(self) -> dict[str, int]:
        """Return how often the summarizer was given each marker."""
        counts: dict[str, int] = {}
        for text in self.inputs:
            for marker in set(markers_in(text)):
                counts[marker] = counts.get(marker, 0) + 1
        return counts

    def known_from(self, text: str) -> set[str]:
        """Return the markers that a text tells, itself or through the summaries in it."""
        known: set[str] = set()
        pending = [text]
        seen: set[int] = set()
        while pending:
            current = pending.pop()
            known.update(markers_in(current))
            for number in map(int, _SUMMARY.findall(current)):
                if number not in seen:
                    seen.add(number)
                    pending.append(self.inputs[number - 1])
        return known


class RecordingTokenizer:
    """Tokenizer that counts its calls and keeps the texts it was given."""

    def __init__(self) -> None:
        self.calls = 0
        self.texts: list[str] = []

    def count_tokens(self, text: str) -> int:
        self.calls += 1
        self.texts.append(text)
        return max(1, len(text) // 4)


async def ask(
    agent: Agent[Any], messages: Any, *, session: AgentSession | None = None, streaming: bool = False, **kwargs: Any
) -> AgentResponse[Any]:
    """Run one turn and return its response, consuming the stream when there is one."""
    if not streaming:
        return await agent.run(messages, session=session, **kwargs)
    stream = agent.run(messages, session=session, stream=True, **kwargs)
    async for _ in stream:
        pass
    return await stream.get_final_response()


# endregion

# region Stores


class SerialisingHistoryProvider(HistoryProvider):
    """Somebody's own append-only store: knows ``get_messages`` and ``save_messages`` and keeps JSON text."""

    def __init__(self, source_id: str = "serialising", **kwargs: Any) -> None:
        super().__init__(source_id, **kwargs)
        self.records: dict[str, list[str]] = {}
        self.saves = 0

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Message]:
        return [Message.from_dict(json.loads(record)) for record in self.records.get(session_id or "", [])]

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.saves += 1
        self.records.setdefault(session_id or "", []).extend(json.dumps(message.to_dict()) for message in messages)


@dataclass
class Store:
    """A history provider under test and a reading of what it really holds, past any projection."""

    kind: str
    provider: Any
    path: Path | None = None

    def read(self, session: AgentSession) -> list[Message]:
        if self.kind == "memory":
            return list(session.state.get(self.provider.source_id, {}).get("messages", []))
        if self.kind == "serialising":
            return [
                Message.from_dict(json.loads(record)) for record in self.provider.records.get(session.session_id, [])
            ]
        return read_history_file(self.file(session))

    def file(self, session: AgentSession) -> Path:
        assert self.path is not None
        return self.path / f"{session.session_id}.{'jsonl' if self.kind == 'file' else 'msgpack'}"

    @property
    def source_id(self) -> str:
        return self.provider.source_id


def read_history_file(path: Path) -> list[Message]:
    """Read a history file as it is on the disk."""
    if not path.exists():
        return []
    data = path.read_bytes()
    if path.suffix == ".jsonl":
        return [Message.from_dict(json.loads(line)) for line in data.splitlines() if line.strip()]
    import msgspec

    messages: list[Message] = []
    position = 0
    while position < len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        record = data[position + 4 : position + 4 + length]
        assert len(record) == length, f"{path} ends in the middle of a record"
        messages.append(Message.from_dict(msgspec.msgpack.decode(record)))
        position += 4 + length
    return messages


def make_store(kind: str, path: Path, **kwargs: Any) -> Store:
    if kind == "memory":
        return Store(kind, InMemoryHistoryProvider(**kwargs))
    if kind == "serialising":
        return Store(kind, SerialisingHistoryProvider(**kwargs))
    format_ = "json" if kind == "file" else "msgpack"
    return Store(kind, FileHistoryProvider(path, serialization_format=format_, **kwargs), path)


# endregion

# region Strategies

STRATEGY_NAMES = [
    "sliding_window",
    "truncation",
    "truncation_tokens",
    "selective_tool_calls",
    "tool_results",
    "summarization",
    "token_budget",
    "context_window",
]
SUMMARIZING = {"tool_results", "summarization"}


def make_strategy(name: str, summarizer: Summarizer | None = None, *, tight: bool = True) -> Any:
    """Return a built-in strategy, configured to compact as much as it can."""
    tokenizer = CharacterEstimatorTokenizer()
    match name:
        case "sliding_window":
            return SlidingWindowStrategy(keep_last_groups=1 if tight else 3)
        case "truncation":
            return TruncationStrategy(max_n=3 if tight else 8, compact_to=1 if tight else 4)
        case "truncation_tokens":
            return TruncationStrategy(max_n=120 if tight else 400, compact_to=60 if tight else 200, tokenizer=tokenizer)
        case "selective_tool_calls":
            return SelectiveToolCallCompactionStrategy(keep_last_tool_call_groups=0 if tight else 2)
        case "tool_results":
            return ToolResultCompactionStrategy(keep_last_tool_call_groups=0 if tight else 2)
        case "summarization":
            assert summarizer is not None
            return SummarizationStrategy(
                client=summarizer,  # type: ignore[arg-type]
                target_count=1 if tight else 4,
                threshold=0 if tight else 2,
                max_summary_input_tokens=None,
            )
        case "token_budget":
            return TokenBudgetComposedStrategy(
                token_budget=100 if tight else 400,
                tokenizer=tokenizer,
                strategies=[ToolResultCompactionStrategy(keep_last_tool_call_groups=0 if tight else 1)],
            )
        case "context_window":
            return ContextWindowCompactionStrategy(
                max_context_window_tokens=200 if tight else 500,
                max_output_tokens=50,
                keep_last_tool_call_groups=0 if tight else 1,
            )
        case _:
            raise ValueError(name)


# endregion

# region Conversations


@dataclass
class Talk:
    """A scripted conversation of one agent with one store, keeping what was said."""

    store: Store
    streaming: bool = False
    per_call: bool = False
    in_run: Any = None
    before: Any = None
    after: Any = None
    summarizer: Summarizer = field(default_factory=Summarizer)
    client_options: dict[str, Any] = field(default_factory=dict)
    provider_options: dict[str, Any] = field(default_factory=dict)
    middleware: list[Any] = field(default_factory=list)
    result_size: int = 0
    attach_compaction: bool = False
    compaction_first: bool = False
    message_id_of_answers: str | None = None

    def __post_init__(self) -> None:
        self.client = ScriptedChatClient(**self.client_options)
        self.session = AgentSession()
        self.said: list[str] = []
        self.turns = 0
        self.agent = self.make_agent(self.client, self.in_run)

    def make_agent(self, client: ScriptedChatClient, in_run: Any = None) -> Agent[Any]:
        providers: list[Any] = [self.store.provider]
        if self.attach_compaction or self.before is not None or self.after is not None:
            compaction = CompactionProvider(
                before_strategy=self.before,
                after_strategy=self.after,
                history_source_id=self.store.source_id,
                **self.provider_options,
            )
            providers.insert(0 if self.compaction_first else 1, compaction)
        return Agent(
            client=client,
            tools=[work_tool(result_size=self.result_size)],
            context_providers=providers,
            compaction_strategy=in_run,
            middleware=self.middleware or None,
            require_per_service_call_history_persistence=self.per_call,
        )

    async def turn(self, calls: int = 0, *, parallel: int = 1, ends_with: Any = None) -> AgentResponse[Any] | None:
        """Say something to the agent, which calls its tool ``calls`` times and then answers."""
        self.turns += 1
        number = self.turns
        self.said.append(f"u{number}")
        for index in range(calls):
            steps = [f"{number}.{index}.{part}" if parallel > 1 else f"{number}.{index}" for part in range(parallel)]
            self.client.script(call(*steps, message_id=self.message_id_of_answers))
            self.said.extend(f"c{step}" for step in steps)
            self.said.extend(f"r{step}" for step in steps)
        if ends_with is not None:
            self.client.script(ends_with)
            with pytest.raises(type(ends_with)):
                await ask(self.agent, user(f"u{number}"), session=self.session, streaming=self.streaming)
            return None
        self.client.script(say(f"a{number}", message_id=self.message_id_of_answers))
        self.said.append(f"a{number}")
        return await ask(self.agent, user(f"u{number}"), session=self.session, streaming=self.streaming)

    def stored(self) -> list[Message]:
        return self.store.read(self.session)

    def requests_of_turn(self, number: int) -> list[list[Message]]:
        """Return the requests of one turn, told by the input that is the newest in them."""
        turn_of_request = [
            max((int(m[1:]) for m in self.summarizer.known_from(_whole_text(request)) if m[0] == "u"), default=0)
            for request in self.client.requests
        ]
        return [request for request, turn in zip(self.client.requests, turn_of_request) if turn == number]

    async def load(self) -> list[Message]:
        """Return what the next prompt would load, by asking one more question through an agent that only loads."""
        client = ScriptedChatClient([say("probe-answer")])
        attach = self.attach_compaction or self.before is not None or self.after is not None
        reader = replace(self, attach_compaction=attach, in_run=None, before=None, after=None, middleware=[])
        agent = reader.make_agent(client)
        session = copy.deepcopy(self.session)
        if self.store.kind == "memory":
            await ask(agent, user("probe"), session=session, streaming=self.streaming)
        else:
            with _untouched(self.store, self.session):
                await ask(agent, user("probe"), session=session, streaming=self.streaming)
        return [message for message in client.requests[0] if "[[probe]]" not in text_of(message)]


class _untouched:
    """Put the store back as it was after a probe."""

    def __init__(self, store: Store, session: AgentSession) -> None:
        self._store = store
        self._session = session

    def __enter__(self) -> None:
        if self._store.kind == "serialising":
            self._kept: Any = copy.deepcopy(self._store.provider.records)
        else:
            file = self._store.file(self._session)
            self._kept = file.read_bytes() if file.exists() else None

    def __exit__(self, *exc: object) -> None:
        if self._store.kind == "serialising":
            self._store.provider.records = self._kept
            return
        file = self._store.file(self._session)
        if self._kept is None:
            file.unlink(missing_ok=True)
        else:
            file.write_bytes(self._kept)


def _whole_text(messages: Iterable[Message]) -> str:
    return "\n".join(text_of(message) for message in messages)


# endregion

# region Readings


def known(messages: Iterable[Message], summarizer: Summarizer | None = None) -> set[str]:
    """Return the markers that a model given these messages can know; a result's text tells its call, too."""
    text = _whole_text(messages)
    found = summarizer.known_from(text) if summarizer is not None else set(markers_in(text))
    return found | {f"c{marker[1:]}" for marker in found if marker.startswith("r")}


def assert_stored_as_said(stored: Sequence[Message], said: Sequence[str]) -> None:
    """Assert that a store holds everything that was said, in order and once, beside summaries."""
    assert markers(without_summaries(stored)) == list(said)


def assert_nothing_lost(
    stored: Sequence[Message], loaded: Sequence[Message], said: Iterable[str], summarizer: Summarizer
) -> None:
    """Assert that everything said is loaded, told by a loaded summary, or excluded in the store by no summary."""
    dropped = known(filter(is_dropped, stored), summarizer)
    missing = [m for m in dict.fromkeys(said) if m not in known(loaded, summarizer) and m not in dropped]
    assert not missing, f"neither loaded, nor summarized, nor excluded: {missing}"


def assert_covered_by_stored_summaries(stored: Sequence[Message], loaded: Sequence[Message]) -> None:
    """Assert, by the annotations, that what a projection leaves out has a summary in the same store."""
    covering: dict[str, set[str]] = {}
    for message in stored:
        for covered_id in summary_of(message):
            assert message.message_id
            covering.setdefault(covered_id, set()).add(message.message_id)
    told_ids = {m.message_id for m in [*loaded, *filter(is_dropped, stored)] if m.message_id}
    loaded_markers = set(markers(loaded))

    def is_told(message_id: str | None, seen: frozenset[str] = frozenset()) -> bool:
        if message_id is None or message_id in seen:
            return False
        return message_id in told_ids or any(
            is_told(summary_id, seen | {message_id}) for summary_id in covering.get(message_id, ())
        )

    for message in stored:
        if is_dropped(message):
            continue
        if not summary_of(message) and loaded_markers.issuperset(markers([message])):
            continue
        assert is_told(message.message_id), f"{text_of(message)!r} is left out and no stored summary tells it"


def assert_no_dangling_pointer(stored: Sequence[Message]) -> None:
    """Assert that no stored annotation points to a summary that is not there."""
    ids = {message.message_id for message in stored}
    dangling = {
        message.message_id: summarized_by(message)
        for message in stored
        if summarized_by(message) is not None and summarized_by(message) not in ids
    }
    assert not dangling


def assert_unique_ids(stored: Sequence[Message]) -> None:
    ids = [message.message_id for message in stored]
    assert None not in ids, "a message without an id was stored"
    assert len(set(ids)) == len(ids), f"repeated ids: {sorted({i for i in ids if ids.count(i) > 1})}"


def unpaired_calls(messages: Sequence[Message]) -> list[str]:
    """Return the ids of calls without a later result and of results without an earlier call."""
    open_calls: list[str] = []
    orphans: list[str] = []
    for message in messages:
        for content in message.contents:
            if content.type == "function_call":
                open_calls.append(content.call_id or "")
            elif content.type == "function_result":
                if content.call_id in open_calls:
                    open_calls.remove(content.call_id)
                else:
                    orphans.append(content.call_id or "")
    return [*open_calls, *orphans]


def assert_paired(requests: Iterable[Sequence[Message]]) -> None:
    """Assert that every call in every request has its result, and every result its call."""
    for number, request in enumerate(requests, start=1):
        assert unpaired_calls(request) == [], f"request {number}"


def assert_all_told(talk: Talk, loaded: Sequence[Message]) -> None:
    """Assert that everything said is stored as it was said, and loaded or told by a stored summary (C1)."""
    stored = talk.stored()
    assert_stored_as_said(stored, talk.said)
    assert_nothing_lost(stored, loaded, talk.said, talk.summarizer)
    assert_covered_by_stored_summaries(stored, loaded)


def assert_prompts_tell_everything(talk: Talk) -> None:
    """Assert that the first prompt of each turn tells all that was said before, where strategies only summarize."""
    for number in range(1, talk.turns + 1):
        requests = talk.requests_of_turn(number)
        assert requests, f"no request of turn {number} tells the input of that turn"
        said_before = [marker for marker in talk.said if int(marker[1:].split(".")[0]) < number]
        missing = [marker for marker in said_before if marker not in known(requests[0], talk.summarizer)]
        assert not missing, f"turn {number} does not tell {missing}"


def assert_sound_history(talk: Talk, loaded: Sequence[Message]) -> None:
    """Assert everything that holds of any compacted history: C1, C2, C4 and C7 at once."""
    assert_all_told(talk, loaded)
    assert_unique_ids(talk.stored())
    assert_no_dangling_pointer(talk.stored())
    assert_paired(talk.client.requests)
    assert unpaired_calls(loaded) == []


# endregion
