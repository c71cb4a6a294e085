# Copyright (c) Microsoft. All rights reserved.

"""``HistoryProvider.replace_messages``: swaps a prefix of a store, or nothing.

A process is killed 60 times for each format. Set ``AGENT_FRAMEWORK_TEST_KILLS=1000`` for the full count.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_framework import AgentSession, FileHistoryProvider, HistoryProvider, Message

from ._compaction_helpers import (
    SerialisingHistoryProvider,
    Store,
    assert_unique_ids,
    make_store,
    markers,
    read_history_file,
    say,
    summary_message,
    text_of,
    user,
)

KILLS = int(os.environ.get("AGENT_FRAMEWORK_TEST_KILLS", "60"))

rewriting_stores = pytest.mark.parametrize("store_kind", ["memory", "file", "msgpack"])
file_stores = pytest.mark.parametrize("store_kind", ["file", "msgpack"])


class _Filled:
    """A store with some messages in it, and the arguments its methods take."""

    def __init__(self, store: Store, session: AgentSession) -> None:
        self.store = store
        self.session = session
        self.state = session.state.setdefault(store.source_id, {})

    @classmethod
    async def with_turns(cls, store_kind: str, path: Path, turns: int) -> _Filled:
        filled = cls(make_store(store_kind, path), AgentSession())
        for number in range(1, turns + 1):
            await filled.save([user(f"u{number}", message_id=f"q{number}"), say(f"a{number}", message_id=f"p{number}")])
        return filled

    async def save(self, messages: Sequence[Message]) -> None:
        await self.store.provider.save_messages(self.session.session_id, messages, state=self.state)

    async def replace(self, replaced: Sequence[Message], replacement: Sequence[Message]) -> bool:
        return await _replace_messages(self.store.provider)(
            self.session.session_id, replaced, replacement, state=self.state
        )

    def read(self) -> list[Message]:
        return self.store.read(self.session)

    def raw(self) -> Any:
        if self.store.kind == "memory":
            return [message.to_dict() for message in self.read()]
        return self.store.file(self.session).read_bytes()


def _replace_messages(provider: Any) -> Any:
    method = getattr(provider, "replace_messages", None)
    if method is None:
        pytest.fail(f"{type(provider).__name__} has no 'replace_messages'")
    return method


# region What it does


@pytest.mark.contract("C14")
@rewriting_stores
async def test_a_prefix_is_replaced_and_what_follows_is_kept(store_kind: str, tmp_path: Path) -> None:
    filled = await _Filled.with_turns(store_kind, tmp_path, 3)
    summary = summary_message("s", ["q1", "p1"], text="the first turn")

    assert await filled.replace(filled.read()[:2], [summary]) is True

    assert [text_of(m) for m in filled.read()] == ["the first turn", *(text_of(m) for m in _turns(2, 3))]
    assert_unique_ids(filled.read())


def _turns(*numbers: int) -> list[Message]:
    return [message for number in numbers for message in (user(f"u{number}"), say(f"a{number}"))]


@pytest.mark.contract("C14")
@rewriting_stores
async def test_what_was_appended_meanwhile_is_kept(store_kind: str, tmp_path: Path) -> None:
    filled = await _Filled.with_turns(store_kind, tmp_path, 2)
    everything = filled.read()
    await filled.save([user("u3", message_id="q3"), say("a3", message_id="p3")])

    assert await filled.replace(everything, [summary_message("s", ["q1", "p1", "q2", "p2"])]) is True

    assert markers(filled.read()) == ["u3", "a3"]
    assert len(filled.read()) == 3


@pytest.mark.contract("C14")
@rewriting_stores
async def test_a_whole_history_can_be_replaced_by_nothing(store_kind: str, tmp_path: Path) -> None:
    filled = await _Filled.with_turns(store_kind, tmp_path, 2)

    assert await filled.replace(filled.read(), []) is True

    assert filled.read() == []
    await filled.save([user("u3")])
    assert markers(filled.read()) == ["u3"]


@pytest.mark.contract("C14")
@rewriting_stores
@pytest.mark.parametrize("change", ["content", "id", "order", "longer", "middle", "annotation"])
async def test_a_prefix_that_does_not_match_changes_nothing(store_kind: str, change: str, tmp_path: Path) -> None:
    filled = await _Filled.with_turns(store_kind, tmp_path, 3)
    prefix = [Message.from_dict(message.to_dict()) for message in filled.read()[:4]]
    match change:
        case "content":
            prefix[1] = say("other", message_id="p1")
        case "id":
            prefix[1].message_id = "another"
        case "order":
            prefix[0], prefix[1] = prefix[1], prefix[0]
        case "longer":
            prefix = [*(Message.from_dict(m.to_dict()) for m in filled.read()), user("u4", message_id="q4")]
        case "middle":
            prefix = prefix[1:]
        case _:
            marked = filled.read()[:4]
            await filled.replace(marked, [*marked[:3], _excluded(marked[3])])
    before = filled.raw()

    assert await filled.replace(prefix, [summary_message("s", ["q1"])]) is False

    assert filled.raw() == before


def _excluded(message: Message) -> Message:
    copied = Message.from_dict(message.to_dict())
    copied.additional_properties["_excluded"] = True
    return copied


@pytest.mark.contract("C14")
@rewriting_stores
async def test_replacing_in_an_empty_store_changes_nothing(store_kind: str, tmp_path: Path) -> None:
    filled = await _Filled.with_turns(store_kind, tmp_path, 0)

    assert await filled.replace([user("u1", message_id="q1")], [say("a1")]) is False

    assert filled.read() == []


@pytest.mark.contract("C14")
@rewriting_stores
async def test_a_replacement_that_was_made_cannot_be_made_again(store_kind: str, tmp_path: Path) -> None:
    """Two writers compact the same prefix: one of them is told that it no longer matches."""
    filled = await _Filled.with_turns(store_kind, tmp_path, 3)
    prefix = filled.read()[:4]

    assert await filled.replace(prefix, [summary_message("s1", ["q1", "p1", "q2", "p2"])]) is True
    assert await filled.replace(prefix, [summary_message("s2", ["q1", "p1", "q2", "p2"])]) is False

    assert [m.message_id for m in filled.read()] == ["s1", "q3", "p3"]


@pytest.mark.contract("C14")
@rewriting_stores
async def test_replacing_leaves_other_sessions_alone(store_kind: str, tmp_path: Path) -> None:
    first = await _Filled.with_turns(store_kind, tmp_path, 2)
    second = _Filled(first.store, AgentSession())
    await second.save(_turns(1, 2))

    assert await first.replace(first.read()[:2], []) is True

    assert markers(second.read()) == ["u1", "a1", "u2", "a2"]


@pytest.mark.contract("C14")
@rewriting_stores
async def test_what_the_caller_does_to_its_messages_later_does_not_reach_the_store(
    store_kind: str, tmp_path: Path
) -> None:
    filled = await _Filled.with_turns(store_kind, tmp_path, 2)
    replacement = [summary_message("s", ["q1", "p1"], text="the first turn")]

    await filled.replace(filled.read()[:2], replacement)
    replacement.append(user("never stored"))

    assert "never stored" not in markers(filled.read())


# endregion

# region Providers


@pytest.mark.contract("C14")
async def test_it_is_optional_for_a_provider() -> None:
    provider = SerialisingHistoryProvider()
    await provider.save_messages("s", _turns(1))
    before = list(provider.records["s"])

    assert not getattr(_replace_messages(provider), "__isabstractmethod__", False)
    with contextlib.suppress(NotImplementedError):
        assert not await provider.replace_messages("s", await provider.get_messages("s"), [])  # type: ignore[attr-defined]
    assert provider.records["s"] == before


@pytest.mark.contract("C14")
def test_it_is_a_method_of_the_base_class() -> None:
    _replace_messages(HistoryProvider)
    assert "replace_messages" not in getattr(HistoryProvider, "__abstractmethods__", frozenset())


@pytest.mark.contract("C14")
@file_stores
async def test_replacing_leaves_one_file_and_its_permissions(store_kind: str, tmp_path: Path) -> None:
    filled = await _Filled.with_turns(store_kind, tmp_path / "histories", 3)
    file = filled.store.file(filled.session)
    if os.name != "nt":
        file.chmod(0o600)

    assert await filled.replace(filled.read()[:2], []) is True

    assert len(read_history_file(file)) == 4
    others = [f.name for f in file.parent.iterdir() if f.suffix == file.suffix and f != file]
    assert others == [], "a second history file would be a second session"
    if os.name != "nt":
        assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.contract("C14")
@file_stores
async def test_a_disk_error_leaves_the_old_history(
    store_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = await _Filled.with_turns(store_kind, tmp_path, 3)
    before = filled.raw()

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError("the disk is full")

    _replace_messages(filled.store.provider)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        patch.setattr(os, "rename", refuse)
        patch.setattr(Path, "replace", refuse)
        patch.setattr(Path, "rename", refuse)
        with contextlib.suppress(OSError):
            assert await filled.replace(filled.read()[:2], []) is False

    assert filled.raw() == before
    assert await filled.replace(filled.read()[:2], []) is True


@pytest.mark.contract("C14")
@file_stores
async def test_many_tasks_replace_and_append_without_losing_anything(store_kind: str, tmp_path: Path) -> None:
    filled = await _Filled.with_turns(store_kind, tmp_path, 1)
    _replace_messages(filled.store.provider)

    async def append(writer: int) -> None:
        for index in range(15):
            await filled.save([user(f"w{writer}.{index}", message_id=f"w{writer}.{index}")])

    async def fold() -> None:
        for index in range(20):
            prefix = filled.read()[:5]
            await filled.replace(prefix, [_folded(prefix, f"fold-{index}")])
            await asyncio.sleep(0)

    await asyncio.gather(append(1), append(2), fold())

    found = markers(filled.read())
    assert sorted(found) == sorted(["u1", "a1", *(f"w{writer}.{index}" for writer in (1, 2) for index in range(15))])


def _names_in(path: Path) -> list[str]:
    return [entry.name for entry in path.iterdir()]


def _folded(messages: Sequence[Message], message_id: str) -> Message:
    return Message("assistant", [" ".join(f"[[{m}]]" for m in markers(messages))], message_id=message_id)


@pytest.mark.contract("C14")
async def test_a_memory_store_without_a_state_has_nothing_to_replace(tmp_path: Path) -> None:
    filled = await _Filled.with_turns("memory", tmp_path, 2)
    replacing = _replace_messages(filled.store.provider)

    assert await replacing(filled.session.session_id, filled.read(), [], state=None) is False

    assert markers(filled.read()) == ["u1", "a1", "u2", "a2"]


@pytest.mark.contract("C14")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_a_file_keeps_the_codec_that_its_provider_was_given(tmp_path: Path) -> None:
    def dumps(value: Any) -> str:
        return json.dumps({"mine": value})

    def loads(text: str | bytes) -> Any:
        return json.loads(text)["mine"]

    provider = FileHistoryProvider(tmp_path, dumps=dumps, loads=loads)
    await provider.save_messages("s", _turns(1, 2))
    replacing = _replace_messages(provider)

    assert await replacing("s", (await provider.get_messages("s"))[:2], []) is True

    assert markers(await provider.get_messages("s")) == ["u2", "a2"]
    lines = (tmp_path / "s.jsonl").read_text(encoding="utf-8").splitlines()
    assert [list(json.loads(line)) for line in lines] == [["mine"], ["mine"]]


@pytest.mark.contract("C14")
@file_stores
@pytest.mark.parametrize("session_id", ["a/b", "..", "CON", "a session with spaces", "\u00e9\u4e2d", "x.lock", None])
async def test_any_session_id_has_a_file_that_can_be_replaced(
    store_kind: str, session_id: str | None, tmp_path: Path
) -> None:
    provider: Any = make_store(store_kind, tmp_path / "histories").provider
    await provider.save_messages(session_id, _turns(1, 2))
    await provider.save_messages("other", _turns(3))
    replacing = _replace_messages(provider)

    assert await replacing(session_id, (await provider.get_messages(session_id))[:2], [say("so far")]) is True

    assert markers(await provider.get_messages(session_id)) == ["so far", "u2", "a2"]
    assert markers(await provider.get_messages("other")) == ["u3", "a3"]
    assert _names_in(tmp_path) == ["histories"]


# region Several processes


_PRELUDE = """
import asyncio, json, os, signal, sys, random, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from agent_framework import FileHistoryProvider, Message

def message(marker, message_id, size=0):
    return Message("user", [f"[[{marker}]]" + "." * size], message_id=message_id)
"""


def _start(body: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    script = textwrap.dedent(_PRELUDE) + textwrap.dedent(body)
    return subprocess.Popen([sys.executable, "-c", script, *arguments], **options)


@pytest.mark.contract("C14")
@file_stores
async def test_processes_that_append_and_replace_lose_no_append(store_kind: str, tmp_path: Path) -> None:
    """A file swapped without an operating-system lock lost 114 of 150 appends of a second process."""
    filled = await _Filled.with_turns(store_kind, tmp_path, 3)
    _replace_messages(filled.store.provider)
    format_ = "json" if store_kind == "file" else "msgpack"
    writer = """
        path, format_, session, name = sys.argv[1:]
        provider = FileHistoryProvider(path, serialization_format=format_)
        async def main():
            for index in range(75):
                await provider.save_messages(session, [message(f"{name}.{index}", f"{name}.{index}")])
        asyncio.run(main())
    """
    processes = [
        _start(writer, str(tmp_path), format_, filled.session.session_id, name) for name in ("first", "second")
    ]
    try:
        folds = 0
        while any(process.poll() is None for process in processes):
            prefix = await filled.store.provider.get_messages(filled.session.session_id)
            folds += await filled.replace(prefix, [_folded(prefix, f"fold-{folds}")])
        assert [process.wait() for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()

    assert folds > 0
    found = markers(filled.read())
    written = [f"{name}.{index}" for name in ("first", "second") for index in range(75)]
    assert sorted(found) == sorted([*markers(_turns(1, 2, 3)), *written])


_NURSERY = """
    # Imports once, then forks a child for every kill: the parent says "go", is told the pid, and kills it.
    path, format_, session = sys.argv[1:]

    async def swap_forever():
        provider = FileHistoryProvider(path, serialization_format=format_)
        histories = [
            [message(f"{side}{index}", f"{side}{index}", size=2000) for index in range(count)]
            for side, count in (("old", 40), ("new", 25))
        ]
        current = [m.message_id for m in await provider.get_messages(session)]
        side = 0 if current[0].startswith("old") else 1
        os.write(1, b"+")
        while True:
            if not await provider.replace_messages(session, histories[side], histories[1 - side]):
                os._exit(3)
            side = 1 - side

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                asyncio.run(swap_forever())
            finally:
                os._exit(4)
        os.write(1, f"{child} ".encode())
        _, status = os.waitpid(child, 0)
        code = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 1000 + os.WEXITSTATUS(status)
        os.write(1, f"ended {code}\\n".encode())
"""


@pytest.mark.contract("C14")
@pytest.mark.timeout(max(120, KILLS))
@file_stores
async def test_a_reader_finds_the_old_history_or_the_new_one_after_a_kill(store_kind: str, tmp_path: Path) -> None:
    format_ = "json" if store_kind == "file" else "msgpack"
    provider = FileHistoryProvider(tmp_path, serialization_format=format_)  # type: ignore[arg-type]
    _replace_messages(provider)
    old = [f"old{index}" for index in range(40)]
    new = [f"new{index}" for index in range(25)]
    await provider.save_messages("session", [Message("user", [f"[[{m}]]" + "." * 2000], message_id=m) for m in old])
    nursery = _start(
        _NURSERY, str(tmp_path), format_, "session", stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    assert nursery.stdin is not None and nursery.stdout is not None
    chance = random.Random(store_kind)
    seen: set[str] = set()
    try:
        for kill in range(KILLS):
            nursery.stdin.write(b"go\n")
            pid, ready = "", False
            while not (pid.endswith(" ") and ready):
                byte = nursery.stdout.read(1)
                assert byte and byte != b"e", "the process ended before it was killed"
                if byte == b"+":
                    ready = True
                else:
                    pid += byte.decode()
            await asyncio.sleep(chance.random() * 0.02)
            os.kill(int(pid), signal.SIGKILL)
            assert nursery.stdout.readline() == f"ended {signal.SIGKILL.value}\n".encode()

            raw = markers(read_history_file(tmp_path / f"session.{'jsonl' if store_kind == 'file' else 'msgpack'}"))
            read = markers(await provider.get_messages("session"))
            assert read == raw, f"kill {kill}"
            assert read in (old, new), f"kill {kill}: neither the old history nor the new one"
            seen.add(read[0])
    finally:
        nursery.stdin.close()
        nursery.wait()
        nursery.stdout.close()

    assert seen == {"old0", "new0"}, "no kill came between two replacements: the test has not tested anything"
    await provider.save_messages("session", [user("after")])
    assert markers(await provider.get_messages("session"))[-1] == "after"


_KILLED_HALF_WAY = """
    path, format_ = sys.argv[1:]
    real_open = Path.open

    class Half:
        def __init__(self, file):
            self.file = file
        def __enter__(self):
            return self
        def __exit__(self, *error):
            self.file.close()
        def write(self, data):
            self.file.write(data[: len(data) * 2 // 3])
            self.file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    def open_half(self, mode="r", *args, **kwargs):
        file = real_open(self, mode, *args, **kwargs)
        return Half(file) if mode.startswith("a") and "session" in self.name else file

    provider = FileHistoryProvider(path, serialization_format=format_)
    Path.open = open_half
    batch = [Message("user", [f"[[second{part}]] please"], message_id=f"second{part}") for part in range(3)]
    asyncio.run(provider.save_messages("session", batch))
"""


@pytest.mark.contract("C14")
@file_stores
async def test_a_reader_finds_whole_appends_after_a_kill(store_kind: str, tmp_path: Path) -> None:
    """The writer is killed when two of three thirds are on the disk, which ends in the middle of a record."""
    format_ = "json" if store_kind == "file" else "msgpack"
    provider = FileHistoryProvider(tmp_path, serialization_format=format_)  # type: ignore[arg-type]
    await provider.save_messages("session", [user("first", message_id="m1")])
    history = tmp_path / f"session.{'jsonl' if store_kind == 'file' else 'msgpack'}"
    size = history.stat().st_size

    process = _start(_KILLED_HALF_WAY, str(tmp_path), format_)
    process.wait()

    assert process.returncode == -signal.SIGKILL
    assert history.stat().st_size > size, "nothing of the append is on the disk: the test has not tested anything"
    assert markers(await provider.get_messages("session")) == ["first"]
    await provider.save_messages("session", [user("third", message_id="m3")])
    assert markers(await provider.get_messages("session")) == ["first", "third"]


@pytest.mark.contract("C14")
@file_stores
async def test_an_append_that_fails_before_there_is_a_history_is_taken_back(
    store_kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    filled = _Filled(make_store(store_kind, tmp_path), AgentSession())
    real_open = Path.open

    def full(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if mode.startswith("a"):
            raise OSError("the disk is full")
        return real_open(self, mode, *args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr(Path, "open", full)
        await filled.save([user("u0")])

    assert await filled.store.provider.get_messages(filled.session.session_id) == []
    await filled.save([user("u1", message_id="m1")])
    assert markers(filled.read()) == ["u1"]


@pytest.mark.contract("C14")
@pytest.mark.parametrize(("killed", "other"), [("json", "msgpack"), ("msgpack", "json")])
async def test_a_killed_append_is_taken_back_from_its_own_file(killed: str, other: str, tmp_path: Path) -> None:
    """Two formats of one session lie next to each other."""
    kept = FileHistoryProvider(tmp_path, serialization_format=other)  # type: ignore[arg-type]
    torn = FileHistoryProvider(tmp_path, serialization_format=killed)  # type: ignore[arg-type]
    everything = [user(f"u{number}", message_id=f"m{number}") for number in range(5)]
    await kept.save_messages("session", everything)
    await torn.save_messages("session", everything[:1])

    process = _start(_KILLED_HALF_WAY, str(tmp_path), killed)
    process.wait()

    assert process.returncode == -signal.SIGKILL
    assert markers(await kept.get_messages("session")) == markers(everything)
    assert markers(await torn.get_messages("session")) == ["u0"]


@pytest.mark.contract("C14")
@file_stores
@pytest.mark.parametrize("length", range(238, 251))
async def test_a_long_session_id_needs_no_longer_names_than_its_history(
    store_kind: str, length: int, tmp_path: Path
) -> None:
    filled = _Filled(make_store(store_kind, tmp_path), AgentSession(session_id="s" * length))
    try:
        (tmp_path / filled.store.provider._session_file_path("s" * length).name).touch()
    except OSError:
        with pytest.raises(OSError, match="too long"):
            await filled.save([user("u1")])
        return

    await filled.save([user("u1", message_id="m1")])

    assert await filled.replace(await filled.store.provider.get_messages("s" * length), [user("u2")]) is True


@pytest.mark.contract("C14")
@file_stores
async def test_a_reader_in_another_process_never_finds_half_a_history(store_kind: str, tmp_path: Path) -> None:
    format_ = "json" if store_kind == "file" else "msgpack"
    provider = FileHistoryProvider(tmp_path, serialization_format=format_)  # type: ignore[arg-type]
    _replace_messages(provider)
    sides = [
        [Message("user", [f"[[{side}{index}]]" + "." * 500], message_id=f"{side}{index}") for index in range(count)]
        for side, count in (("old", 30), ("new", 20))
    ]
    await provider.save_messages("session", sides[0])
    reader = """
        path, format_ = sys.argv[1:]
        provider = FileHistoryProvider(path, serialization_format=format_)
        async def main():
            seen = {}
            for _ in range(200):
                ids = [m.message_id for m in await provider.get_messages("session")]
                seen[json.dumps(ids)] = seen.get(json.dumps(ids), 0) + 1
            print(json.dumps(list(seen)))
        asyncio.run(main())
    """
    process = _start(reader, str(tmp_path), format_, stdout=subprocess.PIPE)
    try:
        side = 0
        while process.poll() is None:
            assert await provider.replace_messages("session", sides[side], sides[1 - side])  # type: ignore[attr-defined]
            side = 1 - side
        output, _ = process.communicate()
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 0
    expected = [[message.message_id for message in side] for side in sides]
    seen = [json.loads(ids) for ids in json.loads(output)]
    assert seen
    assert all(ids in expected for ids in seen)


# endregion
