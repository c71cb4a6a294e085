"""What `make prove` takes for a proof, shown on series that are right and on patches that are broken in every way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gated import ANSWER, BEHAVIOUR, COPYRIGHT, FIX, TEST, GatedProject, answer
from patchset.prove import Proof, read_claim
from patchset.series import load_series
from support import Change

PREPARE = Change(
    "Python: Add a note",
    {"agent_framework/_agents.py": f'{COPYRIGHT}\n"""Agents, noted."""\n'.encode()},
    why="The next patch needs a note.",
    tests="none (needed by Python: Give the right answer)",
)
LATER = Change(
    "Python: Answer twice",
    {ANSWER: answer(42, '\n\ndef twice() -> int:\n    """Return it twice."""\n    return 2 * answer()\n')},
    why="Once is not enough.",
    tests="tests/core/test_twice.py::test_twice",
)
TWICE = f"""{COPYRIGHT}
import pytest

import agent_framework._answer as module


@pytest.mark.contract("T1")
def test_twice() -> None:
    assert module.twice() == 84
"""

CLEAN = f'{COPYRIGHT}\n"""Agents."""\n'.encode()

# Tests that prove nothing about a patch after which the answer is 42 and no longer 41, and what is said of them.
IN_A_FILE: dict[str, tuple[str, str]] = {
    "not_red_before": ("def {it}():\n    assert answer() in (41, 42)", "{it} passes already before the patch"),
    "red_after": ("def {it}():\n    assert answer() == 43", "{it} fails after the patch: assert 42 == 43"),
    "skipped_by_a_mark": (
        "@pytest.mark.skipif(answer() == 41, reason='not yet')\ndef {it}():\n    assert answer() == 42",
        "{it} is skipped before the patch, which is not red",
    ),
    "skipped_in_the_call": (
        "def {it}():\n    if answer() == 41:\n        pytest.skip()\n    assert answer() == 42",
        "{it} is skipped before the patch, which is not red",
    ),
    "expected_to_fail": (
        "@pytest.mark.xfail(answer() == 41, reason='not yet')\ndef {it}():\n    assert answer() == 42",
        "{it} is expected to fail before the patch, which is not red",
    ),
    "fails_in_its_setup": (
        "@pytest.fixture\ndef value():\n    assert answer() == 42\n\n\ndef {it}(value):\n    pass",
        "{it} fails in its setup or teardown before the patch, which is not red",
    ),
    "imports_in_the_call": (
        "def {it}():\n    import agent_framework._new",
        "{it} fails by an import: ModuleNotFoundError: No module named 'agent_framework._new' before the patch",
    ),
    "is_absent": ("def test_another():\n    assert answer() == 42", "{it} is not found before the patch"),
    "is_gone_after": (
        "if answer() == 41:\n\n    def {it}():\n        assert False",
        "{it} is not found after the patch",
    ),
    "no_parameter_is_red": (
        "@pytest.mark.parametrize('number', [1, 2])\ndef {it}(number):\n    assert answer() > number",
        "{it} passes already before the patch",
    ),
    "a_parameter_is_red_after": (
        "@pytest.mark.parametrize('number', [42, 43])\ndef {it}(number):\n    assert answer() == number",
        "{it}[43] fails after the patch: assert 42 == 43",
    ),
    "a_parameter_is_skipped": (
        "@pytest.mark.parametrize('number', [1, pytest.param(2, marks=pytest.mark.skip)])\n"
        "def {it}(number):\n    assert answer() == 42",
        "{it}[2] is skipped before the patch, which is not red",
    ),
    "parameters_change": (
        "@pytest.mark.parametrize('number', range(answer() - 40))\ndef {it}(number):\n    assert answer() == 42",
        "{it} has other parameters before and after the patch: {it}[1]",
    ),
}
BY_THEMSELVES: dict[str, tuple[str, str]] = {
    "not_importable": (
        "assert answer() == 42\n\n\ndef {it}():\n    pass",
        "{it} cannot be imported: assert 41 == 42 before the patch",
    ),
    "skipped_as_a_file": (
        "if answer() == 41:\n    pytest.skip('all of it', allow_module_level=True)\n\n\ndef {it}():\n    pass",
        "{it} is skipped as a whole: Skipped: all of it before the patch",
    ),
}


def claims(gated: GatedProject, *changes: Change) -> list[Proof]:
    """Return what the patches of a series claim."""
    gated.patches(*changes)
    patches = load_series(gated.layout, "1.0")
    return [read_claim(patch, patches[patch.index :]) for patch in patches]


def test_a_series_is_proved_and_its_checkout_left_as_it_was(gated: GatedProject) -> None:
    gated.behaviour({"tests/core/test_twice.py": TWICE})
    gated.patches(PREPARE, FIX, LATER)
    gated.good("apply")
    before = gated.git("rev-parse", "HEAD"), gated.git("status", "--porcelain", "--ignored")

    outcome = gated.good("prove")

    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in outcome.out.splitlines() if "|" in line]
    assert [row[2:] for row in rows if row[0] == "1.0.0"] == [
        ["preparing", "", "", "proved"],
        ["2", "2", "2", "proved"],
        ["1", "1", "1", "proved"],
    ]
    assert outcome.out.splitlines()[-1] == "3 patches proved"
    assert (gated.git("rev-parse", "HEAD"), gated.git("status", "--porcelain", "--ignored")) == before
    assert list(gated.layout.work.iterdir()) == []


def test_what_is_no_proof(gated: GatedProject) -> None:
    header = f"{COPYRIGHT}\nimport pytest\n\nfrom agent_framework import answer\n"
    files = {"tests/core/test_all.py": header}
    expected: list[tuple[str, str]] = []
    for name, (test, said) in IN_A_FILE.items():
        files["tests/core/test_all.py"] += "\n\n" + test.format(it=f"test_{name}") + "\n"
        expected.append((f"tests/core/test_all.py::test_{name}", said))
    for name, (test, said) in BY_THEMSELVES.items():
        files[f"tests/core/test_{name}.py"] = f"{header}\n{test.format(it=f'test_{name}')}\n"
        expected.append((f"tests/core/test_{name}.py::test_{name}", said))
    gated.behaviour(files)
    # A test that does prove something is told from the others.
    named = [f"{TEST}::test_is_the_answer", *(test for test, _ in expected)]
    gated.patches(replace(FIX, tests=" ".join(named)))

    message = gated.bad(1, "prove")

    told = [line.removeprefix("  | ") for line in message.splitlines() if line.startswith("  | tests/")]
    for test, said in expected:
        assert any(line.startswith(said.format(it=test)) for line in told), (test, told)
    assert not [line for line in told if line.startswith(TEST)]
    assert (
        "1.0.0: prove: patch 1 of 1 (0001-Python-Give-the-right-answer.patch): Python: Give the right answer" in message
    )
    assert "  why:   The answer is wrong." in message
    assert "next:  mend the patch in the checkout" in message
    assert "make export BASE=1.0.0 && make prove BASE=1.0.0" in message


def test_one_red_parameter_is_enough_when_it_is_named_or_the_others_pass(gated: GatedProject) -> None:
    together, red, passed = (f"{TEST}::test_is_no_other{parameter}" for parameter in ("", "[41]", "[43]"))
    gated.patches(replace(FIX, tests=f"{together} {red} {passed}"))

    message = gated.bad(1, "prove")

    assert [line for line in message.splitlines() if "::" in line] == [f"  | {passed} passes already before the patch"]


def test_every_patch_leaves_the_source_clean(gated: GatedProject) -> None:
    untidy = f'{COPYRIGHT}\n"""Agents."""\nimport sys\nimport os\n'.encode()
    wrong = answer(42, '\n\nWRONG: int = "text"\n')
    gated.behaviour({"tests/core/test_twice.py": TWICE})
    gated.patches(
        replace(PREPARE, edits={"agent_framework/_agents.py": untidy}),
        replace(FIX, edits={"agent_framework/_agents.py": CLEAN, ANSWER: wrong}),
        LATER,
    )

    message = gated.bad(1, "prove")

    first, second = message.partition("patch 1 of 3")[2].split("patch 2 of 3")
    assert "ruff check is not clean after the patch" in first
    assert "agent_framework/_agents.py:4:" in first
    assert "ruff format is not clean after the patch" in first
    assert "pyright reports" in first
    assert "ruff" not in second
    assert "pyright reports 1 errors after the patch" in second
    assert "agent_framework/_answer.py:11:14: " in second
    assert "patch 3 of 3" not in message


def test_a_claim_names_tests_below_the_core_package_or_below_python(gated: GatedProject) -> None:
    (claim,) = claims(
        gated, replace(FIX, tests=f"{TEST}::test_a packages/core/{TEST}::Of::test_b\n {TEST}::test_c[1-2]")
    )

    assert claim.tests == (f"{TEST}::test_a", f"{TEST}::Of::test_b", f"{TEST}::test_c[1-2]")
    assert claim.problems == []


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        (TEST, f"{TEST} is not the id of a test"),
        ("test_is_the_answer", "test_is_the_answer is not the id of a test"),
        ("packages/ag-ui/tests/test_x.py::test_it", "packages/ag-ui/tests/test_x.py::test_it is not the id of a test"),
        ("none", "none is not the id of a test"),
        ("none (needed by Python: Another)", "no later patch has the subject that needs it: Python: Another"),
        ("none (needed by Python: Give the right answer)", "no later patch has the subject that needs it"),
    ],
)
def test_a_claim_that_names_no_test_is_told(gated: GatedProject, tests: str, said: str) -> None:
    claim, _ = claims(gated, replace(FIX, tests=tests), LATER)

    assert claim.tests == ()
    assert said in claim.problems[0]


def test_a_patch_says_which_tests_show_it(gated: GatedProject) -> None:
    gated.patches(FIX)
    (path,) = gated.layout.series("1.0").glob("*.patch")
    path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith("Tests:")))
    (patch,) = load_series(gated.layout, "1.0")

    assert read_claim(patch, []).problems == ["its header has no Tests: trailer"]


def test_a_preparing_patch_is_not_the_last_one(gated: GatedProject) -> None:
    first, last = claims(gated, FIX, PREPARE)

    assert first.problems == []
    assert last.problems == ["it prepares for a later patch and is the last one"]


def test_an_empty_series_proves_nothing(gated: GatedProject) -> None:
    assert "the series of 1.0 has 0 patches" in gated.bad(1, "prove")


def test_a_behaviour_test_may_not_replace_one_of_upstream(gated: GatedProject) -> None:
    gated.behaviour({"tests/core/test_upstream.py": BEHAVIOUR})
    gated.patches(FIX)

    message = gated.bad(1, "prove")

    assert "python/packages/core/tests/core/test_upstream.py differs from upstream's file of that name" in message
