"""What a log shows that is no terminal: that a step begins, that it goes on, and how it ended."""

from __future__ import annotations

import re
import threading

import pytest

from patchset import console


def test_a_step_that_goes_on_says_so_with_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "PULSE", 0.01)
    said = threading.Event()
    print_ = console.err.print

    def printed(*objects: object) -> None:
        print_(*objects)
        if "(3 of [17] parts)" in str(objects[0]):
            said.set()

    monkeypatch.setattr(console.err, "print", printed)

    with console.step("1.0.0: prove 8 patches") as progress:
        progress.note("(3 of [17] parts)")
        assert said.wait(60)
        progress.outcome = "8 of 8 proved"

    first, *beats, last = capsys.readouterr().err.splitlines()
    assert first == "1.0.0: prove 8 patches ..."
    assert re.fullmatch(r"1\.0\.0: prove 8 patches \.\.\. \d+ s \(3 of \[17\] parts\)", beats[-1])
    assert last == f"1.0.0: prove 8 patches: 8 of 8 proved ({progress.elapsed:.1f} s)"


def test_a_short_step_is_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with console.step("1.0.0: fetch"):
        pass

    begins, ends = capsys.readouterr().err.splitlines()
    assert begins == "1.0.0: fetch ..."
    assert re.fullmatch(r"1\.0\.0: fetch: done \(\d+\.\d s\)", ends)


def test_a_step_that_fails_says_nothing_more(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "PULSE", 0.01)

    with pytest.raises(RuntimeError), console.step("1.0.0: fetch"):
        raise RuntimeError

    assert "1.0.0: fetch" not in {thread.name for thread in threading.enumerate()}
    assert capsys.readouterr().err.splitlines()[0] == "1.0.0: fetch ..."
