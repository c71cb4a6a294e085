"""What released packages use of core's private names: found by reading, held against what core takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchset import guard

STOCK = """
_STATE_KEY = "_pending_state"
_LIMIT = 3


class Agent:
    def __init__(self):
        self._response = None

    async def _after(self, *, session, context, only_some=False):
        pass

    def _plain(self, first, second=None):
        pass

    def get_messages(self, session_id, **kwargs):
        pass

    def public(self):
        pass


if True:
    def _in_a_branch(first, *more):
        pass
"""
USER = """
from agent_framework._agents import _STATE_KEY, Agent
from agent_framework import Agent as Public
from ._own import _helper


class Mine(Agent):
    async def _after(self, *, session, context):
        await super()._after(session=session, context=context)

    def get_messages(self, session_id):
        return self._plain(1)

    def _not_of_core(self):
        return getattr(self, "_response"), {"_pending_state": 1}
"""


def write(folder: Path, package: str, **modules: str) -> Path:
    (folder / package).mkdir(parents=True)
    for name, text in modules.items():
        (folder / package / f"{name}.py").write_text(text)
    return folder / package


@pytest.fixture
def user(tmp_path: Path) -> dict[str, guard.Use]:
    return guard.uses(write(tmp_path, "agent_framework_user", _agent=USER))


def core(tmp_path: Path, name: str, text: str) -> guard.Definitions:
    return guard.definitions(write(tmp_path / name, "agent_framework", _agents=text).parent)


def held(tmp_path: Path, user: dict[str, guard.Use], old: str, new: str) -> list[str]:
    """Return what is said when core is changed in one place."""
    assert old in STOCK
    patched = core(tmp_path, "patched", STOCK.replace(old, new))
    return guard.problems(user, core(tmp_path, "stock", STOCK), patched)


def test_what_is_used_is_found_in_imports_calls_overrides_and_texts(tmp_path: Path, user: dict[str, guard.Use]) -> None:
    found = guard.of_core(user, core(tmp_path, "stock", STOCK))

    assert set(found) == {"Agent", "_STATE_KEY", "_after", "_pending_state", "_plain", "_response", "get_messages"}
    assert found["_after"].places == ["agent_framework_user/_agent.py:7", "agent_framework_user/_agent.py:9"]
    assert found["_after"].overridden
    assert found["_after"].passed == {"session", "context"}
    assert not found["_plain"].overridden


def test_the_same_core_is_no_problem(tmp_path: Path, user: dict[str, guard.Use]) -> None:
    assert held(tmp_path, user, "_LIMIT = 3", "_LIMIT = 4") == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (", only_some=False", ""),  # nobody passes it
        ("_plain(self, first, second=None)", "_plain(self, first, second=None, third=None, *, fourth=4)"),
        ("_in_a_branch(first, *more)", "_in_a_branch()"),  # nobody uses it
        ("def public(self)", "def public(self, needed)"),
        ("self._response = None", "self._response: int | None = None"),
    ],
)
def test_what_nobody_minds(tmp_path: Path, user: dict[str, guard.Use], old: str, new: str) -> None:
    stock = STOCK if "self._response:" not in new else STOCK.replace(old, new)
    assert (
        guard.problems(user, core(tmp_path, "stock", stock), core(tmp_path, "patched", STOCK.replace(old, new))) == []
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("_STATE_KEY = ", "_OTHER_KEY = ", "_agents._STATE_KEY is gone"),
        ('"_pending_state"', '"_state"', "_agents._STATE_KEY is something else"),
        ("self._response = None", "pass", "_agents.Agent._response is gone"),
        ("async def _after", "def _after", "_agents.Agent._after is no coroutine any more"),
        ("def _plain", "async def _plain", "_agents.Agent._plain is a coroutine now"),
        ("*, session, context, only", "*, session, only", "_agents.Agent._after no longer takes context"),
        ("only_some=False", "only_some=False, turn=None", "_agents.Agent._after takes turn as well, which an override"),
        ("second=None", "second", "_agents.Agent._plain has to be given second"),
        ("first, second=None", "other, second=None", "_agents.Agent._plain takes other positional arguments"),
        ("session_id, **kwargs", "session_id", "_agents.Agent.get_messages takes no further arguments any more"),
        ("class Agent:", "class Agents:", "_agents.Agent is gone"),
    ],
)
def test_what_a_user_would_break_on(tmp_path: Path, user: dict[str, guard.Use], old: str, new: str, said: str) -> None:
    problems = held(tmp_path, user, old, new)

    assert any(problem.startswith(said) for problem in problems), problems
    assert all("; used in agent_framework_user/_agent.py:" in problem for problem in problems)


def test_a_call_with_a_mapping_may_pass_anything(tmp_path: Path) -> None:
    user = guard.uses(write(tmp_path, "agent_framework_user", _agent="async def run(a, b): await a._after(**b)\n"))

    problems = held(tmp_path, user, ", only_some=False", "")

    assert problems == ["_agents.Agent._after no longer takes only_some; used in agent_framework_user/_agent.py:1"]


def test_an_argument_that_only_a_mapping_takes_now_is_still_taken(tmp_path: Path, user: dict[str, guard.Use]) -> None:
    assert held(tmp_path, user, "*, session, context, only_some=False", "**arguments") == []


@pytest.mark.parametrize(
    ("imported", "found"),
    [
        ("from ._keys import _STATE_KEY\n", []),
        ("from ._keys import _STATE_KEY as _KEY\n", ["_agents._STATE_KEY is gone"]),
        ("from ._other import _STATE_KEY\n", ["_agents._STATE_KEY is gone"]),
        ("", ["_agents._STATE_KEY is gone"]),
    ],
)
def test_a_name_may_move_if_its_module_still_has_it(
    tmp_path: Path, user: dict[str, guard.Use], imported: str, found: list[str]
) -> None:
    line = '_STATE_KEY = "_pending_state"\n'
    stock = core(tmp_path, "stock", STOCK)
    folder = write(tmp_path / "patched", "agent_framework", _agents=imported + STOCK.replace(line, ""), _keys=line)

    problems = guard.problems(user, stock, guard.offered(folder.parent))

    assert sorted({problem.partition(";")[0] for problem in problems}) == found
