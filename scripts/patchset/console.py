"""What a person sees: progress with elapsed time on the error stream, results on the output stream.

Plain lines when the stream is not a terminal, so that a log of a build server reads well: one when a step begins, one
a minute while it goes on, one when it ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

out = Console(highlight=False, soft_wrap=True)
_WIDEST = 10_000

PULSE = 60.0
"""Seconds after which a step that goes on says so again, where nothing can be written over."""

err = Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Print one line of a result."""
    out.print(escape(text))


class Progress:
    """The line of a running step."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.outcome = "done"
        self._note = ""
        self._started = time.monotonic()

    def note(self, text: str) -> None:
        """Say how far the step is; shown at once on a terminal, with the next line of the step elsewhere."""
        self._note = text

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._started

    def __str__(self) -> str:
        note = f" {self._note}" if self._note else ""
        return f"{self.title} ... {self.elapsed:.0f} s{note}"

    def __rich__(self) -> str:
        return escape(str(self))


@contextmanager
def step(title: str) -> Generator[Progress]:
    """Show that `title` is going on, and at its end how long it took.

    Args:
        title: The step, as in `1.14.0: fetch`.

    Yields:
        The progress, to note how far the step is and to replace the word `done` at its end.
    """
    progress = Progress(title)
    if err.is_terminal:
        with err.status(progress):
            yield progress
    else:
        err.print(escape(f"{title} ..."))
        with _pulse(progress):
            yield progress
    err.print(escape(f"{title}: {progress.outcome} ({progress.elapsed:.1f} s)"))


@contextmanager
def _pulse(progress: Progress) -> Generator[None]:
    """Print a line of a step every now and then, so that nobody takes it for dead."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(PULSE):
            err.print(progress)

    thread = threading.Thread(target=beat, name=progress.title, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; on anything but a terminal it is as wide as its text, so that nothing is cut."""
    say(title)
    drawn = Table(box=box.HEAVY_HEAD if out.is_terminal else box.ASCII)
    for column in columns:
        drawn.add_column(escape(column), no_wrap=not out.is_terminal)
    for row in rows:
        drawn.add_row(*(escape(cell) for cell in row))
    if out.is_terminal:
        out.print(drawn)
    else:
        wide = Console(file=out.file, highlight=False, width=_WIDEST)
        wide.print(drawn)
