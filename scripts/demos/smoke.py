"""Exercise an installed wheel: `smoke.py <version>` with the Python of the environment that it is installed in.

The build says which one it is, every public name can be imported, and the ten-todo task keeps its own results until its
turn is over, in every mode and order, in one loop, in stacked loops and in a harness agent.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import agent_framework
from scenarios import SCENARIOS, Options, play
from scripted import KEEP

TODOS = 10


def identity(version: str) -> Iterator[str]:
    """Yield what is wrong with what the installed build says of itself."""
    distribution = importlib.metadata.distribution("agent-framework-core")
    for name, found in (("metadata", distribution.version), ("__version__", agent_framework.__version__)):
        if found != version:
            yield f"{name} says {found}, not {version}"
    if not Path(agent_framework.__file__).is_relative_to(sys.prefix):
        yield f"agent_framework was imported from {agent_framework.__file__}, not from the environment"


def names() -> Iterator[str]:
    """Yield the public names that cannot be had, where no optional package is missing."""
    for name in agent_framework.__all__:
        try:
            getattr(agent_framework, name)
        except ModuleNotFoundError as missing:
            if (missing.name or "").startswith("agent_framework."):
                yield f"{name} cannot be imported: {missing}"
        except (AttributeError, ImportError) as error:
            yield f"{name} cannot be imported: {error}"


async def turns() -> Iterator[str]:
    """Yield in which scenario a task lost its own results, or its turn did not end once and compacted."""
    wrong: list[str] = []
    for scenario, stream, history_first in itertools.product(SCENARIOS, (False, True), (True, False)):
        outcome = await play(scenario, Options(TODOS, stream, history_first))
        what = f"{scenario}, stream={stream}, history_first={history_first}"
        lost = [call for call in outcome["calls"] if call["verbatim"] != call["made"] or call["flattened"]]
        if lost:
            first = lost[0]
            wrong.append(f"{what}: call {first['number']} sees {first['verbatim']} of {first['made']} results")
        if outcome["boundaries"] != 1:
            wrong.append(f"{what}: the turn ended {outcome['boundaries']} times")
        if outcome["flattened_after"] != TODOS - KEEP:
            wrong.append(
                f"{what}: {outcome['flattened_after']} results are compacted after the turn, not {TODOS - KEEP}"
            )
    return iter(wrong)


def main() -> int:
    """Say what is wrong and return the exit status."""
    wrong = [*identity(sys.argv[1]), *names(), *asyncio.run(turns())]
    print("\n".join(wrong) or "ok")  # noqa: T201
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
