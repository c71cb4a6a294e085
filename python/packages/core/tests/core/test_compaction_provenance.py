# Copyright (c) Microsoft. All rights reserved.

"""Where a replacement comes from: what a middleware claims, and what a summary behind it may stand for."""

from __future__ import annotations

import copy
import itertools
import json
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import agent_framework
from agent_framework import (
    GROUP_ANNOTATION_KEY,
    GROUP_ID_KEY,
    BaseChatClient,
    ChatMiddleware,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    Message,
    SlidingWindowStrategy,
    annotate_message_groups,
    apply_compaction,
    chat_middleware,
)

from ._compaction_helpers import (
    STRATEGY_NAMES,
    SUMMARIZING,
    ScriptedChatClient,
    Summarizer,
    Talk,
    annotation,
    assert_all_told,
    assert_no_dangling_pointer,
    assert_paired,
    assert_unique_ids,
    both_modes,
    both_persistences,
    call,
    cover,
    every_axis,
    is_excluded,
    make_store,
    make_strategy,
    markers,
    new_name,
    result,
    say,
    summarized_by,
    summary_message,
    summary_of,
    text_of,
    user,
)

both_claims = pytest.mark.parametrize("claim", ["annotation", "context"])


def _superseded(message: Message) -> list[str]:
    return list(annotation(message).get(new_name("SUPERSEDES_MESSAGE_IDS_KEY")) or [])


# region The claim


@pytest.mark.contract("C8")
def test_a_claim_is_a_key_of_the_group_annotation() -> None:
    record_superseded, key = new_name("record_superseded"), new_name("SUPERSEDES_MESSAGE_IDS_KEY")
    source, replacement = user("u1", message_id="m1"), user("u1", message_id="m1-fitted")

    assert record_superseded(replacement, source) is replacement
    assert replacement.additional_properties[GROUP_ANNOTATION_KEY][key] == ["m1"]


@pytest.mark.contract("C8")
@pytest.mark.parametrize("shape", [list, tuple])
def test_a_claim_names_all_its_sources_in_order_and_once(shape: Callable[[Any], Sequence[Message]]) -> None:
    record_superseded = new_name("record_superseded")
    first, second = user("u1", message_id="m1"), user("u2", message_id="m2")
    replacement = Message("user", ["both"], message_id="m")

    record_superseded(replacement, shape([first, second, first]))

    assert _superseded(replacement) == ["m1", "m2"]


@pytest.mark.contract("C8")
def test_a_claim_gives_ids_to_sources_that_have_none() -> None:
    record_superseded = new_name("record_superseded")
    sources = [user("u1"), user("u2")]
    replacement = Message("user", ["both"])

    record_superseded(replacement, sources)

    ids = [source.message_id for source in sources]
    assert None not in ids
    assert len(set(ids)) == 2
    assert _superseded(replacement) == ids


@pytest.mark.contract("C8")
def test_a_claim_does_not_write_into_an_annotation_that_is_shared() -> None:
    record_superseded = new_name("record_superseded")
    source = user("u1", message_id="m1")
    annotate_message_groups([source])
    before = copy.deepcopy(source.additional_properties)
    replacement = copy.copy(source)
    replacement.additional_properties = dict(source.additional_properties)
    replacement.message_id = "m1-fitted"

    record_superseded(replacement, source)

    assert source.additional_properties == before
    assert _superseded(replacement) == ["m1"]


@pytest.mark.contract("C8")
@pytest.mark.parametrize("way", ["copy", "deepcopy", "dictionary", "json", "annotated", "reannotated"])
def test_a_claim_survives(way: str) -> None:
    record_superseded = new_name("record_superseded")
    replacement = record_superseded(user("u1", message_id="m1-fitted"), user("u1", message_id="m1"))
    match way:
        case "copy":
            again = copy.copy(replacement)
        case "deepcopy":
            again = copy.deepcopy(replacement)
        case "dictionary":
            again = Message.from_dict(replacement.to_dict())
        case "json":
            again = Message.from_dict(json.loads(json.dumps(replacement.to_dict())))
        case _:
            again = replacement
            annotate_message_groups([again], force_reannotate=way == "reannotated")

    assert _superseded(again) == ["m1"]


@pytest.mark.contract("C8")
@pytest.mark.parametrize(
    ("replacement", "sources", "error"),
    [
        ("not a message", user("u1"), TypeError),
        (None, user("u1"), TypeError),
        (user("u1"), "m1", TypeError),
        (user("u1"), b"m1", TypeError),
        (user("u1"), 7, TypeError),
        (user("u1"), None, TypeError),
        (user("u1"), ["m1"], TypeError),
        (user("u1"), [user("u2"), "m1"], TypeError),
        (user("u1"), [], ValueError),
        (user("u1"), (), ValueError),
    ],
)
def test_a_wrong_claim_is_refused(replacement: Any, sources: Any, error: type[Exception]) -> None:
    record_superseded = new_name("record_superseded")

    with pytest.raises(error):
        record_superseded(replacement, sources)


@pytest.mark.contract("C8")
def test_a_message_cannot_supersede_itself() -> None:
    record_superseded = new_name("record_superseded")
    message = user("u1")

    with pytest.raises(ValueError, match="source"):
        record_superseded(message, [user("u2"), message])


@pytest.mark.contract("C8")
def test_a_refused_claim_changes_nothing() -> None:
    record_superseded = new_name("record_superseded")
    message, source = user("u1"), user("u2")

    with pytest.raises(TypeError):
        record_superseded(message, [source, "m1"])

    assert source.message_id is None
    assert annotation(message) == {}


@pytest.mark.contract("C8")
def test_the_names_are_exported_and_typed() -> None:
    stub = Path(agent_framework.__file__).with_name("__init__.pyi")
    for name in ("record_superseded", "SUPERSEDES_MESSAGE_IDS_KEY"):
        new_name(name)
        assert name in agent_framework.__all__
        assert not stub.exists() or name in stub.read_text(encoding="utf-8")


# endregion

# region One call of a chat client


class _OneAnswer(ChatMiddlewareLayer, BaseChatClient):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.requests: list[list[Message]] = []

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **kwargs: Any) -> Any:
        self.requests.append(list(messages))
        if stream:

            async def _stream() -> Any:
                yield ChatResponseUpdate(contents=[Content.from_text("ok")], role="assistant")

            return self._build_response_stream(_stream())

        async def _get() -> ChatResponse:
            return ChatResponse(messages=[Message("assistant", ["ok"])])

        return _get()


def _claim(context: Any, claim: str | None, replacement: Message, sources: Any) -> Message:
    if claim == "annotation":
        return new_name("record_superseded")(replacement, sources)
    if claim == "context":
        return context.record_message_replacement(replacement, sources)
    return replacement


class _Replace(ChatMiddleware):
    """Replaces each tool message by the messages that ``parts`` makes of it."""

    def __init__(self, claim: str | None, parts: Callable[[Message], list[Message]], *, in_place: bool = False) -> None:
        self._claim = claim
        self._parts = parts
        self._in_place = in_place

    async def process(self, context: Any, call_next: Any) -> None:
        rewritten: list[Message] = []
        for message in context.messages:
            if message.role != "tool":
                rewritten.append(message)
                continue
            rewritten.extend(_claim(context, self._claim, part, message) for part in self._parts(message))
        if self._in_place:
            context.messages[:] = rewritten
        else:
            context.messages = rewritten
        await call_next()


class _Merge(ChatMiddleware):
    """Replaces the first two messages by one."""

    def __init__(self, claim: str | None) -> None:
        self._claim = claim

    async def process(self, context: Any, call_next: Any) -> None:
        first, second, *rest = context.messages
        merged = Message("user", [text_of(first) + text_of(second)], message_id="merged")
        context.messages = [_claim(context, self._claim, merged, [first, second]), *rest]
        await call_next()


class _Summarize(ChatMiddleware):
    """Puts a summary before the messages it keeps, and leaves the summarized ones out of the list it passes on."""

    def __init__(
        self,
        keep: Callable[[list[Message]], list[Message]] = lambda messages: messages[-1:],
        *,
        summary_id: str = "summary-1",
        leave_out: bool = True,
        in_place: bool = False,
    ) -> None:
        self._keep = keep
        self._summary_id = summary_id
        self._leave_out = leave_out
        self._in_place = in_place

    async def process(self, context: Any, call_next: Any) -> None:
        messages = list(context.messages)
        kept = self._keep(messages)
        old = [message for message in messages if message not in kept]
        summary = summary_message(self._summary_id, [m.message_id or "" for m in old], "<what happened>", "user")
        for message in old:
            cover(message, self._summary_id)
        new = [summary, *kept] if self._leave_out else [summary, *messages]
        if self._in_place:
            context.messages[:] = new
        else:
            context.messages = new
        await call_next()


@chat_middleware
async def _copy_deeply(context: Any, call_next: Any) -> None:
    context.messages = copy.deepcopy(list(context.messages))
    await call_next()


def _talk() -> list[Message]:
    return [
        Message("user", ["q1"], message_id="m1"),
        Message("tool", ["output"], message_id="m2"),
        Message("user", ["q2"], message_id="m3"),
    ]


def _one_part(message: Message) -> list[Message]:
    return [Message(message.role, message.contents, message_id=f"{message.message_id}-fitted")]


def _same_id(message: Message) -> list[Message]:
    return [Message(message.role, message.contents, message_id=message.message_id)]


def _no_id(message: Message) -> list[Message]:
    return [Message(message.role, message.contents)]


def _two_parts(message: Message) -> list[Message]:
    return [
        Message("tool", message.contents, message_id=f"{message.message_id}-text"),
        Message("user", ["the image"], message_id=f"{message.message_id}-image"),
    ]


async def _send(middleware: list[Any], talk: list[Message], *, streaming: bool) -> _OneAnswer:
    client = _OneAnswer(middleware=middleware)
    if streaming:
        stream = client.get_response(talk, stream=True)
        async for _ in stream:
            pass
        await stream.get_final_response()
    else:
        await client.get_response(talk)
    return client


def _outcome(talk: list[Message]) -> tuple[bool, list[str | None]]:
    """Return whether the caller's list holds a summary, and which of its messages are excluded."""
    assert all(summarized_by(m) is not None for m in talk if is_excluded(m))
    return any(summary_of(m) for m in talk), [m.message_id for m in talk if is_excluded(m)]


@pytest.mark.contract("C9")
@both_modes
@both_claims
@pytest.mark.parametrize("order", ["compact_first", "replace_first"])
@pytest.mark.parametrize(
    "parts", [_one_part, _same_id, _no_id, _two_parts], ids=["new_id", "same_id", "no_id", "two_parts"]
)
@pytest.mark.parametrize("in_place", [False, True], ids=["new_list", "in_place"])
async def test_a_summary_over_claimed_replacements_is_accepted(
    streaming: bool, claim: str, order: str, parts: Any, in_place: bool
) -> None:
    """Public issue 8313: behind a middleware that replaces messages the summary was lost."""
    pair: list[Any] = [_Replace(claim, parts, in_place=in_place), _Summarize(in_place=in_place)]
    talk = _talk()
    if parts is _no_id:
        pair[1] = _SummarizeWithStrategy()

    client = await _send(pair if order == "replace_first" else pair[::-1], talk, streaming=streaming)

    assert _outcome(talk) == (True, ["m1", "m2"])
    assert [m.message_id for m in talk if not is_excluded(m) and not summary_of(m)] == ["m3"]
    assert len(client.requests[0]) == 2


class _SummarizeWithStrategy(ChatMiddleware):
    """Compacts with the library's own strategy, as a middleware of somebody may."""

    def __init__(self) -> None:
        self.summarizer = Summarizer()

    async def process(self, context: Any, call_next: Any) -> None:
        context.messages = await apply_compaction(
            list(context.messages), strategy=make_strategy("summarization", self.summarizer)
        )
        await call_next()


@pytest.mark.contract("C9")
@both_modes
@both_claims
@pytest.mark.parametrize("order", ["compact_first", "replace_first"])
async def test_a_summary_of_the_library_over_claimed_replacements_is_accepted(
    streaming: bool, claim: str, order: str
) -> None:
    pair: list[Any] = [_Replace(claim, _one_part), _SummarizeWithStrategy()]
    talk = _talk()

    await _send(pair if order == "replace_first" else pair[::-1], talk, streaming=streaming)

    assert _outcome(talk) == (True, ["m1", "m2"])


@pytest.mark.contract("C9")
@both_modes
@both_claims
@pytest.mark.parametrize("covered", ["both", "text", "image"])
async def test_a_split_message_is_covered_with_all_its_parts_or_not_at_all(
    streaming: bool, claim: str, covered: str
) -> None:
    def keep(messages: list[Message]) -> list[Message]:
        other = {"both": (), "text": ("m2-image",), "image": ("m2-text",)}[covered]
        return [m for m in messages if m.message_id == "m3" or m.message_id in other]

    talk = _talk()

    await _send([_Replace(claim, _two_parts), _Summarize(keep)], talk, streaming=streaming)

    assert _outcome(talk) == ((True, ["m1", "m2"]) if covered == "both" else (False, []))


@pytest.mark.contract("C9")
@both_modes
@both_claims
async def test_two_summaries_may_cover_the_parts_of_a_split_message_together(streaming: bool, claim: str) -> None:
    talk = _talk()
    first = _Summarize(lambda ms: [m for m in ms if m.message_id in ("m2-image", "m3")], summary_id="summary-1")
    second = _Summarize(lambda ms: [m for m in ms if m.message_id == "m3"], summary_id="summary-2")

    await _send([_Replace(claim, _two_parts), first, second], talk, streaming=streaming)

    summary, excluded = _outcome(talk)
    assert summary
    assert [message_id for message_id in excluded if message_id != "summary-1"] == ["m1", "m2"]


@pytest.mark.contract("C9")
@both_modes
@both_claims
async def test_a_summary_does_not_cover_a_part_that_a_refused_one_told(streaming: bool, claim: str) -> None:
    """The first summary stands for one part and is refused; the second stands for the other part alone."""
    talk = _talk()
    first = _SummarizeOnly("m2-text", summary_id="summary-1")
    second = _SummarizeOnly("m2-image", summary_id="summary-2")

    await _send([_Replace(claim, _two_parts), first, second], talk, streaming=streaming)

    assert _outcome(talk) == (False, [])


@pytest.mark.contract("C9")
@both_modes
@both_claims
@pytest.mark.parametrize("left_out", ["m2-text", "m2-image"])
async def test_a_summary_does_not_cover_a_part_that_was_left_out_before(
    streaming: bool, claim: str, left_out: str
) -> None:
    @chat_middleware
    async def leave_out(context: Any, call_next: Any) -> None:
        context.messages = [message for message in context.messages if message.message_id != left_out]
        await call_next()

    talk = _talk()

    await _send([_Replace(claim, _two_parts), leave_out, _Summarize()], talk, streaming=streaming)

    assert _outcome(talk) == (False, [])


class _SummarizeOnly(ChatMiddleware):
    """Puts a summary in the place of one message."""

    def __init__(self, message_id: str, *, summary_id: str) -> None:
        self._message_id = message_id
        self._summary_id = summary_id

    async def process(self, context: Any, call_next: Any) -> None:
        summary = summary_message(self._summary_id, [self._message_id], "<what happened>", "user")
        context.messages = [summary if m.message_id == self._message_id else m for m in context.messages]
        await call_next()


@pytest.mark.contract("C8")
@both_modes
@both_claims
async def test_both_claims_hold_for_a_middleware_that_summarizes_what_it_replaced(streaming: bool, claim: str) -> None:
    """The replacements are in no list that anybody else sees."""

    @chat_middleware
    async def fit_and_summarize(context: Any, call_next: Any) -> None:
        fitted = [_claim(context, claim, _one_part(message)[0], message) for message in context.messages]
        context.messages = await apply_compaction(fitted, strategy=make_strategy("summarization", Summarizer()))
        await call_next()

    talk = _talk()

    await _send([fit_and_summarize], talk, streaming=streaming)

    assert _outcome(talk) == (True, ["m1", "m2"])


@pytest.mark.contract("C9")
@both_modes
async def test_a_summary_without_an_id_is_given_one(streaming: bool) -> None:
    @chat_middleware
    async def summarize(context: Any, call_next: Any) -> None:
        summary = summary_message("summary-1", ["m1", "m2"], "<what happened>", "user")
        summary.message_id = None
        context.messages = [summary, *context.messages[-1:]]
        await call_next()

    talk = _talk()

    await _send([summarize], talk, streaming=streaming)

    assert _outcome(talk) == (True, ["m1", "m2"])


@pytest.mark.contract("C9")
@both_modes
@both_claims
async def test_a_replacement_of_several_messages_covers_them_all(streaming: bool, claim: str) -> None:
    talk = _talk()

    await _send([_Merge(claim), _Summarize()], talk, streaming=streaming)

    assert _outcome(talk) == (True, ["m1", "m2"])


@pytest.mark.contract("C9")
@both_modes
@pytest.mark.parametrize("claims", list(itertools.product(["annotation", "context"], repeat=2)), ids="-".join)
@pytest.mark.parametrize(
    "parts",
    [(_one_part, _one_part), (_two_parts, _one_part), (_one_part, _two_parts), (_same_id, _one_part)],
    ids=["one-one", "two-one", "one-two", "same-one"],
)
async def test_a_replacement_of_a_replacement_leads_back_to_its_source(
    streaming: bool, claims: tuple[str, str], parts: Any
) -> None:
    talk = _talk()

    await _send([_Replace(claims[0], parts[0]), _Replace(claims[1], parts[1]), _Summarize()], talk, streaming=streaming)

    assert _outcome(talk) == (True, ["m1", "m2"])


@pytest.mark.contract("C9")
@both_modes
@both_claims
async def test_a_summary_of_a_summary_over_replacements_is_accepted(streaming: bool, claim: str) -> None:
    talk = [*_talk(), Message("user", ["q3"], message_id="m4")]

    await _send(
        [
            _Replace(claim, _one_part),
            _Summarize(lambda messages: messages[-2:], summary_id="summary-1"),
            _Summarize(lambda messages: messages[-1:], summary_id="summary-2"),
        ],
        talk,
        streaming=streaming,
    )

    assert "summary-2" in [m.message_id for m in talk]
    assert [m.message_id for m in talk if is_excluded(m) and not summary_of(m)] == ["m1", "m2", "m3"]
    assert [m.message_id for m in talk if not is_excluded(m)] == ["summary-2", "m4"]


@pytest.mark.contract("C9")
@both_modes
@both_claims
@pytest.mark.parametrize("parts", [_one_part, _two_parts, _same_id], ids=["new_id", "two_parts", "same_id"])
@pytest.mark.parametrize("copied", ["after_the_claim", "before_the_claim", "after_the_summary"])
async def test_a_claim_survives_a_middleware_that_copies_deeply(
    streaming: bool, claim: str, parts: Any, copied: str
) -> None:
    talk = _talk()
    middleware: list[Any] = [_Replace(claim, parts), _Summarize()]
    middleware.insert({"before_the_claim": 0, "after_the_claim": 1, "after_the_summary": 2}[copied], _copy_deeply)

    await _send(middleware, talk, streaming=streaming)

    assert _outcome(talk) == (True, ["m1", "m2"])


@pytest.mark.contract("C9")
@both_modes
@both_claims
async def test_an_accepted_summary_names_the_durable_messages(streaming: bool, claim: str) -> None:
    """The names of replacements alone would lead nowhere in a store that has never seen them."""
    talk = _talk()

    await _send([_Replace(claim, _two_parts), _Summarize()], talk, streaming=streaming)

    (summary,) = [message for message in talk if summary_of(message)]
    assert {"m1", "m2"} <= set(summary_of(summary))


@pytest.mark.contract("C10")
@both_modes
async def test_without_a_claim_no_rewrite_persists(streaming: bool) -> None:
    talk = _talk()
    before = copy.deepcopy(talk)

    await _send([_Replace(None, _one_part), _Summarize()], talk, streaming=streaming)

    assert _outcome(talk) == (False, [])
    assert [text_of(m) for m in talk] == [text_of(m) for m in before]


@pytest.mark.contract("C10")
@both_modes
@pytest.mark.parametrize("copied", ["all", "tool"])
async def test_an_unclaimed_copy_that_keeps_its_id_is_taken_whole_or_refused_whole(
    streaming: bool, copied: str
) -> None:
    talk = _talk()
    rewrite = _copy_deeply if copied == "all" else _Replace(None, _same_id)

    await _send([rewrite, _Summarize()], talk, streaming=streaming)

    assert _outcome(talk) in [(True, ["m1", "m2"]), (False, [])]


@pytest.mark.contract("C10")
@both_modes
async def test_a_copy_with_other_content_under_the_same_id_never_stands_next_to_its_summary(streaming: bool) -> None:
    talk = _talk()

    def other(message: Message) -> list[Message]:
        return [Message("tool", ["something else"], message_id=message.message_id)]

    await _send([_Replace(None, other), _Summarize()], talk, streaming=streaming)

    assert _outcome(talk) in [(True, ["m1", "m2"]), (False, [])]


# endregion

# region The function-calling loop, and what becomes durable


class _ImageMover(ChatMiddleware):
    """Moves the image out of a tool result, for a provider that takes images from users alone."""

    def __init__(self, claim: str | None, ids: str = "none") -> None:
        self._claim = claim
        self._ids = ids

    async def process(self, context: Any, call_next: Any) -> None:
        moved: list[Message] = []
        for message in context.messages:
            if message.role != "tool":
                moved.append(message)
                continue
            text = Message("tool", list(message.contents))
            image = Message("user", [f"the image of {', '.join(markers([message]))}"])
            if self._ids == "derived" and message.message_id:
                text.message_id, image.message_id = f"{message.message_id}-text", f"{message.message_id}-image"
            elif self._ids == "kept":
                text.message_id = message.message_id
            moved.extend(_claim(context, self._claim, part, message) for part in (text, image))
        context.messages = moved
        await call_next()


class _CompactingMiddleware(ChatMiddleware):
    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy

    async def process(self, context: Any, call_next: Any) -> None:
        context.messages = await apply_compaction(list(context.messages), strategy=self._strategy)
        await call_next()


def _moving_talk(
    store_kind: str, path: Path, streaming: bool, per_call: bool, name: str, claim: str | None, ids: str, place: str
) -> Talk:
    talk = Talk(make_store(store_kind, path), streaming, per_call)
    strategy = make_strategy(name, talk.summarizer, tight=False)
    mover = _ImageMover(claim, ids)
    if place == "strategy":
        talk.middleware = [mover]
        talk.in_run = strategy
    elif place == "middleware_after":
        talk.middleware = [mover, _CompactingMiddleware(strategy)]
    else:
        talk.middleware = [_CompactingMiddleware(strategy), mover]
    talk.agent = talk.make_agent(talk.client, talk.in_run)
    return talk


def _assert_no_summary_next_to_what_it_tells(requests: Sequence[Sequence[Message]], summarizer: Summarizer) -> None:
    for number, request in enumerate(requests, start=1):
        ids = {message.message_id for message in request if message.message_id}
        for summary in (message for message in request if summary_of(message)):
            assert not ids & set(summary_of(summary)), f"request {number} has {text_of(summary)!r} and what it covers"
            told = summarizer.known_from(text_of(summary))
            beside = {marker for m in request if m is not summary for marker in markers([m]) if marker[0] in "rc"}
            assert not {m for m in told if m[0] in "rc"} & beside, f"request {number}"


@pytest.mark.contract("C9")
@both_modes
@pytest.mark.parametrize("store_kind", ["memory", "file"])
@both_claims
@pytest.mark.parametrize("ids", ["derived", "kept", "none"])
@pytest.mark.parametrize("place", ["strategy", "middleware_after", "middleware_before"])
@pytest.mark.parametrize("name", sorted(SUMMARIZING))
async def test_a_summary_over_moved_images_reaches_the_history(
    streaming: bool, store_kind: str, claim: str, ids: str, place: str, name: str, tmp_path: Path
) -> None:
    """In no configuration of a loop of eleven calls did a summary reach the stored history."""
    talk = _moving_talk(store_kind, tmp_path, streaming, False, name, claim, ids, place)

    response = await talk.turn(calls=11)
    await talk.turn()

    stored = talk.stored()
    assert any(summary_of(message) for message in stored), "no summary is durable"
    assert response is not None
    assert any(summary_of(message) for message in response.messages), "no summary is in the response"
    assert not any("the image of" in text_of(message) for message in stored)
    assert_all_told(talk, await talk.load())
    assert_no_dangling_pointer(stored)
    assert_unique_ids(stored)
    assert_paired(talk.client.requests)
    _assert_no_summary_next_to_what_it_tells(talk.client.requests, talk.summarizer)


@pytest.mark.contract("C9")
@both_modes
@pytest.mark.parametrize("store_kind", ["memory", "file"])
@both_claims
@pytest.mark.parametrize("ids", ["derived", "kept", "none"])
@pytest.mark.parametrize("place", ["strategy", "middleware_after", "middleware_before"])
@pytest.mark.parametrize("name", sorted(SUMMARIZING))
async def test_a_summary_over_moved_images_is_sound_under_per_service_call_persistence(
    streaming: bool, store_kind: str, claim: str, ids: str, place: str, name: str, tmp_path: Path
) -> None:
    """The mover is outside the persisting middleware: what it makes of a result is what is stored."""
    talk = _moving_talk(store_kind, tmp_path, streaming, True, name, claim, ids, place)

    await talk.turn(calls=11)
    await talk.turn()

    stored = talk.stored()
    said = [marker for message in stored if not summary_of(message) for marker in _said_markers(message)]
    assert said == talk.said
    if place == "strategy":
        assert any(summary_of(message) for message in stored), "no summary is durable"
    assert_no_dangling_pointer(stored)
    assert_unique_ids(stored)
    assert_paired(talk.client.requests)
    _assert_no_summary_next_to_what_it_tells(talk.client.requests, talk.summarizer)


def _said_markers(message: Message) -> list[str]:
    return [] if "the image of" in text_of(message) else markers([message])


@pytest.mark.contract("C9")
@both_modes
@both_persistences
@both_claims
@pytest.mark.parametrize("name", sorted(SUMMARIZING))
async def test_a_loop_over_moved_images_stays_compacted(
    streaming: bool, per_call: bool, claim: str, name: str, tmp_path: Path
) -> None:
    talk = _moving_talk("memory", tmp_path, streaming, per_call, name, claim, "none", "strategy")

    await talk.turn(calls=16)

    calls = [sum(c.type == "function_call" for m in request for c in m.contents) for request in talk.client.requests]
    assert max(calls) <= 3
    assert {marker: n for marker, n in talk.summarizer.times_read().items() if n > 1} == {}


@pytest.mark.contract("C9")
@both_modes
@both_persistences
@both_claims
@pytest.mark.parametrize("ids", ["derived", "kept", "none"])
async def test_no_request_tells_a_result_twice(
    streaming: bool, per_call: bool, claim: str, ids: str, tmp_path: Path
) -> None:
    """With ids of None and a recorded replacement one request carried the same result three times."""
    talk = _moving_talk("memory", tmp_path, streaming, per_call, "summarization", claim, ids, "strategy")

    await talk.turn(calls=6)
    await talk.turn(calls=2)

    for request in talk.client.requests:
        results = [marker for message in request for marker in _said_markers(message) if marker.startswith("r")]
        assert len(set(results)) == len(results)


@pytest.mark.contract("C9")
@pytest.mark.parametrize("claimed", ["parts", "parts_apart"])
def test_messages_that_claim_one_source_are_one_group(claimed: str) -> None:
    record_superseded = new_name("record_superseded")
    source = result("1.0", message_id="m3")
    text, image = Message("tool", source.contents), Message("user", ["the image"])
    record_superseded(text, source)
    record_superseded(image, source)
    between = [say("a0", message_id="m4")] if claimed == "parts_apart" else []
    messages = [user("u1", message_id="m1"), call("1.0", message_id="m2"), text, *between, image, say("a1")]

    annotate_message_groups(messages)

    assert annotation(text)[GROUP_ID_KEY] == annotation(image)[GROUP_ID_KEY] == annotation(messages[1])[GROUP_ID_KEY]


@pytest.mark.contract("C9")
@pytest.mark.parametrize("name", [*STRATEGY_NAMES, *(f"window_{keep}" for keep in range(1, 7))])
async def test_no_strategy_cuts_between_the_parts_of_one_message(name: str) -> None:
    record_superseded = new_name("record_superseded")
    messages: list[Message] = [user("u1")]
    for index in range(3):
        source = result(f"1.{index}", message_id=f"source-{index}")
        parts = [Message("tool", source.contents), Message("user", [f"image {index}"])]
        messages.extend([call(f"1.{index}"), *(record_superseded(part, source) for part in parts)])
    messages.append(user("u2"))
    if name.startswith("window_"):
        strategy: Any = SlidingWindowStrategy(keep_last_groups=int(name[-1]))
    else:
        strategy = make_strategy(name, Summarizer())

    projected = await apply_compaction(messages, strategy=strategy)

    for index in range(3):
        kept = [m for m in projected if not summary_of(m)]
        has_text = any(m.role == "tool" and f"r1.{index}" in markers([m]) for m in kept)
        has_image = any(text_of(m) == f"image {index}" for m in kept)
        assert has_text == has_image


@pytest.mark.contract("C10")
@both_modes
@pytest.mark.parametrize("store_kind", ["memory", "file"])
@pytest.mark.parametrize("ids", ["derived", "kept", "none"])
@pytest.mark.parametrize("place", ["strategy", "middleware_after", "middleware_before"])
@pytest.mark.parametrize("name", sorted(SUMMARIZING))
async def test_an_unclaimed_mover_persists_no_rewrite_and_loses_nothing(
    streaming: bool, store_kind: str, ids: str, place: str, name: str, tmp_path: Path
) -> None:
    talk = _moving_talk(store_kind, tmp_path, streaming, False, name, None, ids, place)

    await talk.turn(calls=11)
    await talk.turn()

    assert not any("the image of" in text_of(message) for message in talk.stored())
    assert_all_told(talk, await talk.load())
    assert_no_dangling_pointer(talk.stored())
    assert_paired(talk.client.requests)
    _assert_no_summary_next_to_what_it_tells(talk.client.requests, talk.summarizer)


@pytest.mark.contract("C10")
@both_modes
@both_persistences
@pytest.mark.parametrize("name", sorted(SUMMARIZING))
@pytest.mark.parametrize("depth", ["shallow", "deep"])
async def test_unclaimed_copies_give_no_summary_next_to_what_it_tells(
    streaming: bool, per_call: bool, name: str, depth: str, tmp_path: Path
) -> None:
    """Nothing was excluded in the loop, and every call added another summary."""

    @chat_middleware
    async def copying(context: Any, call_next: Any) -> None:
        context.messages = [copy.copy(m) if depth == "shallow" else copy.deepcopy(m) for m in context.messages]
        await call_next()

    talk = Talk(make_store("memory", tmp_path), streaming, per_call, middleware=[copying])
    talk.agent = talk.make_agent(talk.client, make_strategy(name, talk.summarizer, tight=False))

    await talk.turn(calls=8)
    await talk.turn()

    _assert_no_summary_next_to_what_it_tells(talk.client.requests, talk.summarizer)
    assert_all_told(talk, await talk.load())


@pytest.mark.contract("C10")
@both_modes
@both_persistences
@pytest.mark.parametrize("name", sorted(SUMMARIZING))
async def test_unclaimed_replacements_that_keep_their_id_do_not_pile_up_summaries(
    streaming: bool, per_call: bool, name: str, tmp_path: Path
) -> None:
    """A summary was accepted and nothing excluded: every call then added another one over the same messages."""
    talk = Talk(make_store("memory", tmp_path), streaming, per_call, middleware=[_Replace(None, _same_id)])
    talk.agent = talk.make_agent(talk.client, make_strategy(name, talk.summarizer, tight=False))

    await talk.turn(calls=12)

    covered: dict[str, int] = {}
    for summary in (message for message in talk.stored() if summary_of(message)):
        for message_id in summary_of(summary):
            covered[message_id] = covered.get(message_id, 0) + 1
    assert {message_id: count for message_id, count in covered.items() if count > 1} == {}
    _assert_no_summary_next_to_what_it_tells(talk.client.requests, talk.summarizer)
    assert_all_told(talk, await talk.load())


@pytest.mark.contract("C10")
@every_axis
async def test_a_message_that_a_middleware_adds_is_stored_only_under_per_service_call_persistence(
    streaming: bool, store_kind: str, per_call: bool, tmp_path: Path
) -> None:
    @chat_middleware
    async def remind(context: Any, call_next: Any) -> None:
        context.messages = [*context.messages, Message("user", ["remember the rules"])]
        await call_next()

    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call, middleware=[remind])

    await talk.turn()

    assert [text_of(m) for m in talk.stored() if "remember" in text_of(m)] == (
        ["remember the rules"] if per_call else []
    )


# endregion

# region Warnings


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.contract("C11")
@both_modes
async def test_a_summary_of_an_unknown_message_is_refused_with_a_warning_that_helps(
    streaming: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        await _send([_Replace(None, _one_part), _Summarize()], _talk(), streaming=streaming)

    (warning,) = _warnings(caplog)
    assert "summary-1" in warning
    assert "m2-fitted" in warning
    assert not re.search(r"\bm1\b", warning), "m1 is the caller's own"
    assert "record_superseded" in warning


@pytest.mark.contract("C11")
@both_modes
@both_claims
async def test_a_summary_of_a_part_is_refused_with_a_warning_that_helps(
    streaming: bool, claim: str, caplog: pytest.LogCaptureFixture
) -> None:
    def keep(messages: list[Message]) -> list[Message]:
        return [m for m in messages if m.message_id in ("m2-image", "m3")]

    with caplog.at_level(logging.WARNING):
        await _send([_Replace(claim, _two_parts), _Summarize(keep)], _talk(), streaming=streaming)

    (warning,) = _warnings(caplog)
    assert "summary-1" in warning
    assert "m2-image" in warning


class _SummarizeEachCall(ChatMiddleware):
    """Summarizes all tool messages of each request, under a new id, and names ``name`` of each of them."""

    def __init__(self, name: Callable[[Message], str]) -> None:
        self._name = name
        self.made = 0

    async def process(self, context: Any, call_next: Any) -> None:
        old = [message for message in context.messages if message.role == "tool"]
        if old:
            self.made += 1
            summary = summary_message(f"summary-{self.made}", [self._name(m) for m in old], "<so far>")
            context.messages = [summary, *context.messages]
        await call_next()


@pytest.mark.contract("C11")
@both_modes
@both_persistences
async def test_a_refusal_is_logged_once_per_run_and_kind(
    streaming: bool, per_call: bool, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    summarize = _SummarizeEachCall(lambda message: f"unknown-{len(text_of(message))}")
    talk = Talk(make_store("memory", tmp_path), streaming, per_call, middleware=[summarize])

    with caplog.at_level(logging.WARNING):
        await talk.turn(calls=6)
    first_run = _warnings(caplog)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        await talk.turn(calls=3)

    assert summarize.made >= 6
    assert len(first_run) == 1
    assert "record_superseded" in first_run[0]
    assert len(_warnings(caplog)) == 1


@pytest.mark.contract("C11")
@both_modes
async def test_a_refusal_is_logged_once_in_the_tool_loop_of_a_client(
    streaming: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Where there is no agent, the run is the call of the client."""
    from ._compaction_helpers import work_tool

    summarize = _SummarizeEachCall(lambda message: f"unknown-{len(text_of(message))}")
    client = ScriptedChatClient([call("1.0"), call("1.1"), call("1.2"), say("a1")], middleware=[summarize])
    options: Any = {"tools": [work_tool()]}

    with caplog.at_level(logging.WARNING):
        if streaming:
            stream = client.get_response([user("u1")], stream=True, options=options)
            async for _ in stream:
                pass
            await stream.get_final_response()
        else:
            await client.get_response([user("u1")], options=options)

    assert summarize.made >= 3
    assert len(_warnings(caplog)) == 1


@pytest.mark.contract("C11")
@both_modes
async def test_a_summary_that_covers_the_caller_s_messages_is_accepted_in_the_loop(
    streaming: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The working list has the caller's messages in it; what of a summary reaches the response is judged apart."""
    client = ScriptedChatClient([call("1.0"), call("1.1"), call("1.2"), say("a1")])
    summarizer = Summarizer()
    from ._compaction_helpers import work_tool

    caller = [user("old"), say("older"), user("u1")]
    options: Any = {"tools": [work_tool()]}
    strategy = make_strategy("summarization", summarizer)

    with caplog.at_level(logging.WARNING):
        if streaming:
            stream = client.get_response(caller, stream=True, options=options, compaction_strategy=strategy)
            async for _ in stream:
                pass
            await stream.get_final_response()
        else:
            await client.get_response(caller, options=options, compaction_strategy=strategy)

    assert _warnings(caplog) == []
    assert "old" in summarizer.times_read()
    assert {marker: n for marker, n in summarizer.times_read().items() if n > 1} == {}
    assert all("u1" in markers(request) for request in client.requests)


@pytest.mark.contract("C11")
@every_axis
@pytest.mark.parametrize("name", STRATEGY_NAMES)
async def test_a_healthy_run_logs_nothing(
    streaming: bool, store_kind: str, per_call: bool, name: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    talk = Talk(make_store(store_kind, tmp_path), streaming, per_call)
    talk.in_run = make_strategy(name, talk.summarizer, tight=False)
    talk.after = make_strategy(name, talk.summarizer, tight=False)
    talk.agent = talk.make_agent(talk.client, talk.in_run)

    with caplog.at_level(logging.WARNING):
        for calls in (4, 0, 3):
            await talk.turn(calls=calls)

    over_budget = "token" in name or name == "context_window"
    assert [w for w in _warnings(caplog) if not (over_budget and "budget" in w)] == []


@pytest.mark.contract("C11")
@both_modes
@both_claims
@pytest.mark.parametrize("ids", ["derived", "kept", "none"])
@pytest.mark.parametrize("name", sorted(SUMMARIZING))
@both_persistences
async def test_a_healthy_run_with_a_claiming_middleware_logs_nothing(
    streaming: bool,
    per_call: bool,
    claim: str,
    ids: str,
    name: str,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    talk = _moving_talk("memory", tmp_path, streaming, per_call, name, claim, ids, "strategy")

    with caplog.at_level(logging.WARNING):
        await talk.turn(calls=6)
        await talk.turn(calls=2)

    assert _warnings(caplog) == []


@pytest.mark.contract("C11")
@both_modes
async def test_healthy_harness_turns_log_nothing(streaming: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Twelve to sixteen warnings in five healthy turns."""
    from agent_framework import AgentSession, create_harness_agent

    from ._compaction_helpers import ask, work_tool

    client = ScriptedChatClient()
    summarizer = Summarizer()
    agent = create_harness_agent(
        client,
        tools=[work_tool()],
        before_compaction_strategy=make_strategy("summarization", summarizer, tight=False),
        after_compaction_strategy=make_strategy("tool_results", tight=False),
        disable_todo=True,
        disable_mode=True,
        disable_file_memory=True,
        disable_web_search=True,
    )
    session = AgentSession()

    with caplog.at_level(logging.WARNING):
        for number in range(1, 6):
            client.script(*(call(f"{number}.{index}") for index in range(4)), say(f"a{number}"))
            await ask(agent, user(f"u{number}"), session=session, streaming=streaming)

    assert _warnings(caplog) == []
    assert {marker: n for marker, n in summarizer.times_read().items() if n > 1} == {}


# endregion
