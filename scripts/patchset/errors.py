"""The one way a step fails: what failed, where, why it matters and what to type next.

Steps raise it and know nothing of the terminal; `cli` renders it, once.
"""

from __future__ import annotations

USAGE = 2
"""Exit status when the input is at fault (unknown base, wrong Python, dirty checkout): nothing was started."""

FAILED = 1
"""Exit status when a step was started and failed."""


class PatchsetError(Exception):
    """A failure that a person can act on."""

    def __init__(
        self,
        step: str,
        what: str,
        *,
        where: str | None = None,
        why: str | None = None,
        state: str | None = None,
        next: str | None = None,
        output: str | None = None,
        exit_code: int = FAILED,
    ) -> None:
        """Describe the failure.

        Args:
            step: The command or step that failed, as typed after `make`.
            what: What failed, one sentence.

        Keyword Args:
            where: File and line, hunk, or checkout.
            why: Why the thing that failed exists (the Why of a patch).
            state: What is known of the cause, such as that a patch looks already applied.
            next: The exact next command, or the ways out, one a line.
            output: The tail of what a tool printed.
            exit_code: `USAGE` or `FAILED`.
        """
        super().__init__(what)
        self.step = step
        self.what = what
        self.where = where
        self.why = why
        self.state = state
        self.next = next
        self.output = output
        self.exit_code = exit_code

    def render(self) -> str:
        """Return the message as plain text, one labelled block a field."""
        lines = [f"{self.step}: {self.what}"]
        if self.output:
            lines += [f"  | {line}" for line in self.output.rstrip().splitlines()]
        fields = (("where", self.where), ("why", self.why), ("state", self.state), ("next", self.next))
        for label, text in fields:
            if text:
                first, *rest = text.splitlines()
                lines.append(f"  {label + ':':<7}{first}")
                lines += [f"{'':9}{line}" for line in rest]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.render()


class SeveralErrors(PatchsetError):
    """Failures of independent parts of one command, listed together at its end."""

    def __init__(self, errors: list[PatchsetError]) -> None:
        """Keep `errors` in the order in which they happened; there is at least one."""
        super().__init__(errors[0].step, f"{len(errors)} failures", exit_code=max(error.exit_code for error in errors))
        self.errors = errors

    def render(self) -> str:
        """Return every message, one after the other."""
        return "\n".join(error.render() for error in self.errors)
