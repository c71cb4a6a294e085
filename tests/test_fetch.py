"""Archives: by pip, checked whenever they are used, and never half there."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support import CORE_FILES, FIRST, Project, make_archive, sha256

CORE_ARCHIVE = "agent_framework_core-1.0.0.tar.gz"


@pytest.fixture(autouse=True)
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own pip settings say nothing in these tests."""
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")


@pytest.fixture
def index(project: Project, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the user's pip is told to use: the published archives; the cache is empty."""
    project.release("1.0.0", line="1.0", cached=False)
    for cached in project.layout.cache.iterdir():
        cached.unlink()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(project.published))
    return project.published


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index is at a port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    monkeypatch.delenv("PIP_NO_INDEX", raising=False)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")


def nothing_half_made(project: Project) -> None:
    assert list(project.layout.cache.iterdir()) == []
    assert [path.name for path in project.layout.checkouts.iterdir()] == [".lock"]


def test_archives_come_by_pip_and_are_kept(project: Project, index: Path) -> None:
    outcome = project.good("apply")
    assert f"1.0.0: download {CORE_ARCHIVE} (0.0 MB) ..." in outcome.err
    kept = {path.name: path.read_bytes() for path in project.layout.cache.iterdir()}
    assert kept == {path.name: path.read_bytes() for path in index.iterdir()}


def test_with_the_network_cut_the_cache_is_enough(
    project: Project, index: Path, request: pytest.FixtureRequest
) -> None:
    project.series(FIRST)
    first = project.good("apply").out
    request.getfixturevalue("no_network")
    assert "nothing to do" in project.good("apply").out
    project.checkout.rename(project.layout.root / "elsewhere")
    assert project.good("apply").out == first


@pytest.mark.usefixtures("index", "no_network")
def test_no_network_is_one_clear_message(project: Project) -> None:
    message = project.bad(1, "apply")
    assert (
        f"fetch: {CORE_ARCHIVE} could not be downloaded: no network, or the package index is out of reach"
    ) in message
    assert "next:  check the network and pip's index settings (pip config list), then run the command again" in message
    nothing_half_made(project)


def test_an_archive_that_the_index_lacks(project: Project, index: Path) -> None:
    (index / CORE_ARCHIVE).unlink()
    message = project.bad(1, "apply")
    assert f"{CORE_ARCHIVE} could not be downloaded: the package index does not have it" in message
    nothing_half_made(project)


def test_another_archive_than_the_published_one(project: Project, index: Path) -> None:
    make_archive(index / CORE_ARCHIVE, CORE_FILES | {"agent_framework/_evil.py": b"evil = True\n"})
    message = project.bad(1, "apply")
    assert f"fetch: the package index gave another {CORE_ARCHIVE} than the published one" in message
    assert f"wrong hash: sha256 {sha256(index / CORE_ARCHIVE)}, {project.rows['1.0.0']['core_sha256']} was" in message
    nothing_half_made(project)


def test_a_truncated_archive_at_the_index(project: Project, index: Path) -> None:
    whole = (index / CORE_ARCHIVE).read_bytes()
    (index / CORE_ARCHIVE).write_bytes(whole[:-20])
    assert "gave another" in project.bad(1, "apply")
    nothing_half_made(project)


def test_the_right_hash_with_the_wrong_size(project: Project, index: Path) -> None:
    """The table is wrong then; what it says is not loosened."""
    project.rows["1.0.0"]["core_size"] = 7
    project.write_table()
    size = (index / CORE_ARCHIVE).stat().st_size
    assert f"state: too long: {size:,} bytes, 7 were published" in project.bad(1, "apply")
    nothing_half_made(project)


@contextlib.contextmanager
def serving(folder: Path, *, cut: int) -> Generator[str]:
    """A package index that promises whole archives and hangs up `cut` bytes before their end."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rstrip("/").rpartition("/")[2]
            path = folder / name
            if path.is_file():
                body = path.read_bytes()
                kind = "application/gzip"
            else:
                links = "".join(
                    f'<a href="/files/{file.name}">{file.name}</a>'
                    for file in folder.iterdir()
                    if file.name.startswith(name.replace("-", "_") + "-1")
                )
                body, kind = f"<!DOCTYPE html><html><body>{links}</body></html>".encode(), "text/html"
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:-cut] if cut and path.is_file() else body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/simple"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("cut", [0, 20], ids=["whole", "hung up"])
def test_a_connection_that_breaks(project: Project, index: Path, monkeypatch: pytest.MonkeyPatch, cut: int) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with serving(index, cut=cut) as url:
        monkeypatch.setenv("PIP_INDEX_URL", url)
        if not cut:
            project.good("apply")
            return
        message = project.bad(1, "apply")
    assert CORE_ARCHIVE in message
    assert "next:" in message
    nothing_half_made(project)


@pytest.mark.parametrize("name", [CORE_ARCHIVE, "agent_framework-1.0.0.tar.gz"])
@pytest.mark.parametrize("harm", ["truncated", "too long", "wrong hash"])
def test_a_wrong_archive_in_the_cache_is_not_used(project: Project, name: str, harm: str) -> None:
    cached = project.layout.cache / name
    whole = cached.read_bytes()
    harmed = {"truncated": whole[:-1], "too long": whole + b"\0", "wrong hash": whole[:-1] + bytes([whole[-1] ^ 1])}
    cached.write_bytes(harmed[harm])
    message = project.bad(1, "apply")
    assert f"fetch: {name} in the cache is not the published archive" in message
    assert f"where: build/cache/{name}" in message
    assert f"state: {harm}: " in message
    assert f"next:  rm build/cache/{name} and run the command again" in message
    assert cached.read_bytes() == harmed[harm]
    assert [path.name for path in project.layout.checkouts.iterdir()] == [".lock"]


@pytest.mark.parametrize("member", ["../escape.py", "agent_framework/../../escape.py", ".git/config"])
def test_an_archive_with_a_member_that_does_not_belong_there(project: Project, member: str) -> None:
    project.release("1.0.0", line="1.0", core={member: b"x"})
    message = project.bad(1, "apply")
    assert f"{CORE_ARCHIVE} has a member that does not belong there: agent_framework_core-1.0.0/{member}" in message
    assert [path.name for path in project.layout.checkouts.iterdir()] == [".lock"]


def test_an_archive_that_is_none(project: Project) -> None:
    cached = project.layout.cache / CORE_ARCHIVE
    cached.write_bytes(b"no archive")
    project.rows["1.0.0"] |= {"core_sha256": sha256(cached), "core_size": 10}
    project.write_table()
    assert f"base: {CORE_ARCHIVE} cannot be unpacked" in project.bad(1, "apply")
    assert [path.name for path in project.layout.checkouts.iterdir()] == [".lock"]


def test_pips_other_settings_change_nothing(
    project: Project, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where packages come from is the user's to say, and nothing else of pip's configuration counts."""
    configuration = tmp_path / "pip.conf"
    configuration.write_text(
        f"[global]\nno-index = true\nconstraint = {tmp_path}/missing.txt\nonly-binary = :all:\nquiet = 2\n"
        f"[download]\nfind-links = {index}\ndest = {tmp_path}/elsewhere\nplatform = win32\nno-clean = true\n"
        "[install]\nfind-links = /missing\n"
    )
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(configuration))
    for name, value in (
        ("PIP_ONLY_BINARY", ":all:"),
        ("PIP_DEST", str(tmp_path / "elsewhere")),
        ("PIP_TARGET", str(tmp_path / "elsewhere")),
        ("PIP_CONSTRAINT", str(tmp_path / "missing.txt")),
        ("PIP_PYTHON_VERSION", "3.6"),
        ("PIP_QUIET", "3"),
        ("PYTHONPATH", str(tmp_path / "shadow")),
        ("PYTHONSTARTUP", str(tmp_path / "missing.py")),
    ):
        monkeypatch.setenv(name, value)
    shadow = tmp_path / "shadow" / "flit_core"
    shadow.mkdir(parents=True)
    (shadow / "__init__.py").write_text("raise SystemExit('shadowed')\n")
    project.good("apply")
    assert sorted(path.name for path in project.layout.cache.iterdir()) == sorted(path.name for path in index.iterdir())
    assert not (tmp_path / "elsewhere").exists()
