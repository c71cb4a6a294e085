"""What is read from a run of tests, how two runs are compared, and what a line may say about that."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from patchset import compare, expected, reports
from patchset.compare import judge
from patchset.errors import PatchsetError
from patchset.expected import Change, Expected
from patchset.reports import Outcome, Report, Result
from patchset.suites import PLUGINS
from support import Project

EVERY_END = """
import pytest

pytestmark = pytest.mark.contract("T3")


@pytest.fixture
def broken():
    raise OSError("no device")


@pytest.fixture
def leaking():
    yield
    raise OSError("not closed")


def test_passes(): pass
def test_fails(): assert 1 == 2
def test_setup(broken): pass
def test_teardown(leaking): pass
def test_fails_and_leaks(leaking): assert 1 == 2
@pytest.mark.skip(reason="not now")
def test_skip(): pass
def test_skips(): pytest.skip("nor then")
@pytest.mark.xfail(reason="known")
def test_xfails(): assert 0
@pytest.mark.xfail(reason="unknown")
def test_xpasses(): pass
@pytest.mark.contract("T4", "T5")
@pytest.mark.parametrize("number", [1, 2])
def test_marked(number): pass
"""


def run_pytest(folder: Path, files: Mapping[str, str], *arguments: str) -> Report:
    """Run pytest on some files in another process, as a suite is run."""
    for name, text in files.items():
        (folder / name).write_text(text)
    log = folder / "report.jsonl"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "patchset_suite",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
    ]
    command += ["-c", "/dev/null", "--continue-on-collection-errors", "--report-log", str(log), *arguments, *files]
    done = subprocess.run(command, cwd=folder, env={"PYTHONPATH": str(PLUGINS)}, capture_output=True, check=False)
    assert log.is_file(), done.stderr.decode()
    return read(log)


def read(log: Path, status: int = 0) -> Report:
    """Read a report log as of a run that left with `status`."""
    return reports.read_file(log, where="build/logs/it.log", status=status, printed="gw0 crashed")


@pytest.mark.parametrize("workers", ["0", "2"])
def test_every_way_in_which_a_test_can_end_is_told(tmp_path: Path, workers: str) -> None:
    files = {
        "test_ends.py": EVERY_END,
        "test_import.py": "import absent_module\n",
        "test_syntax.py": "def\n",
        "test_left_out.py": "import pytest\npytest.skip('never here', allow_module_level=True)\n",
    }

    report = run_pytest(tmp_path, files, "-n", workers)

    found = {name.partition("::")[2]: (test.outcome.value, test.message) for name, test in report.tests.items()}
    assert found == {
        "test_passes": ("passed", ""),
        "test_fails": ("failed", "assert 1 == 2"),
        "test_setup": ("error", "OSError: no device"),
        "test_teardown": ("error", "OSError: not closed"),
        "test_fails_and_leaks": ("failed", "assert 1 == 2"),
        "test_skip": ("skipped", "Skipped: not now"),
        "test_skips": ("skipped", "Skipped: nor then"),
        "test_xfails": ("xfailed", "assert 0"),
        "test_xpasses": ("xpassed", ""),
        "test_marked[1]": ("passed", ""),
        "test_marked[2]": ("passed", ""),
    }
    assert report.uncollected == {
        "test_import.py": "ModuleNotFoundError: No module named 'absent_module'",
        "test_syntax.py": "SyntaxError: invalid syntax",
    }
    assert report.left_out == {"test_left_out.py": "Skipped: never here"}
    assert report.tests["test_ends.py::test_passes"].contract == ("T3",)
    assert report.tests["test_ends.py::test_marked[1]"].contract == ("T3", "T4", "T5")
    assert Report.from_json(json.loads(json.dumps(report.to_json()))) == report


def test_named_tests_run_alone_with_all_their_parameters(tmp_path: Path) -> None:
    only = tmp_path / "only.json"
    only.write_text(json.dumps(["test_ends.py::test_marked", "test_ends.py::test_fails", "test_ends.py::test_absent"]))

    report = run_pytest(tmp_path, {"test_ends.py": EVERY_END}, "--only", str(only))

    assert sorted(report.tests) == [f"test_ends.py::test_{name}" for name in ("fails", "marked[1]", "marked[2]")]


def test_tests_about_other_contract_lines_are_left_out(tmp_path: Path) -> None:
    text = (
        "import pytest\n"
        "def test_about_nothing(): pass\n"
        "@pytest.mark.contract('T1')\ndef test_one(): pass\n"
        "@pytest.mark.contract('T2')\ndef test_two(): pass\n"
        "@pytest.mark.contract('T1', 'T2')\ndef test_both(): pass\n"
    )

    report = run_pytest(tmp_path, {"test_lines.py": text}, "--lines", "T1,T3")

    assert sorted(report.tests) == ["test_lines.py::test_about_nothing", "test_lines.py::test_one"]


def test_a_log_that_was_cut_off_is_no_report(tmp_path: Path) -> None:
    run_pytest(tmp_path, {"test_ends.py": EVERY_END})
    log = tmp_path / "report.jsonl"
    log.write_text("".join(log.read_text().splitlines(True)[:-1]))

    with pytest.raises(PatchsetError) as raised:
        read(log, -9)
    assert raised.value.render() == (
        "tests: pytest did not come to its end, it left with status -9\n"
        "  | gw0 crashed\n"
        "  where: build/logs/it.log\n"
        "  state: a signal ended it, as it does when memory runs out\n"
        "  next:  read build/logs/it.log, then the same command again"
    )
    with pytest.raises(PatchsetError, match="did not come to its end, it left with status 3"):
        read(tmp_path / "absent", 3)


# region comparing


def report(**outcomes: Outcome) -> Report:
    """Return a report of tests by their names."""
    return Report({f"test_it.py::{name}": Result(outcome, "why") for name, outcome in outcomes.items()})


def never(missing: frozenset[str]) -> tuple[Report, Report]:
    raise AssertionError(f"run once more: {missing}")


WANTED = Expected("expected-changes.toml", {"1.0.0": 1}, ())
CHANGE = Change("test_it.py::a", "T1", "because", "test_new.py::a")
PASSED, FAILED = Outcome.PASSED, Outcome.FAILED


def test_more_may_pass_and_what_fails_unpatched_may_fail() -> None:
    verdict = judge(report(a=PASSED, b=FAILED), report(a=PASSED, b=PASSED, c=PASSED), WANTED, "1.0.0", never)
    assert verdict.ok

    assert judge(report(a=PASSED, b=FAILED), report(a=PASSED), WANTED, "1.0.0", never).ok


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.PASSED])
def test_a_test_that_passes_unpatched_and_not_patched_is_lost(outcome: Outcome) -> None:
    stock, patched = report(a=PASSED, b=PASSED), report(a=outcome, b=PASSED)

    verdict = judge(stock, patched, WANTED, "1.0.0", lambda missing: (stock, patched))

    assert not verdict.ok
    assert verdict.lost == {"test_it.py::a": f"{outcome.value}: why"}


def test_a_test_that_is_no_longer_collected_is_lost() -> None:
    stock, patched = report(a=PASSED, b=PASSED), report(b=PASSED)

    assert judge(stock, patched, WANTED, "1.0.0", lambda missing: (stock, patched)).lost == {
        "test_it.py::a": "not collected"
    }

    patched.uncollected["test_it.py"] = "ImportError: x"

    assert judge(stock, patched, WANTED, "1.0.0", lambda missing: (stock, patched)).lost == {
        "test_it.py::a": "not importable: ImportError: x"
    }


def test_what_is_lost_is_run_once_more_alone_before_it_is_judged() -> None:
    asked: list[frozenset[str]] = []

    def rerun(missing: frozenset[str]) -> tuple[Report, Report]:
        asked.append(missing)
        return report(a=PASSED, b=FAILED, c=PASSED), report(a=PASSED, b=FAILED, c=FAILED)

    stock = report(a=PASSED, b=PASSED, c=PASSED, d=PASSED)
    verdict = judge(stock, report(a=FAILED, b=FAILED, c=FAILED, d=PASSED), WANTED, "1.0.0", rerun)

    assert asked == [{"test_it.py::a", "test_it.py::b", "test_it.py::c"}]
    assert verdict.lost == {"test_it.py::c": "failed: why"}
    assert verdict.unstable == {"test_it.py::a", "test_it.py::b"}


def test_many_lost_tests_are_no_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_FEW", 1)

    verdict = judge(report(a=PASSED, b=PASSED), report(a=FAILED, b=FAILED), WANTED, "1.0.0", never)

    assert sorted(verdict.lost) == ["test_it.py::a", "test_it.py::b"]


def test_the_contract_overrules_a_test_with_all_its_parameters() -> None:
    stock = Report({name: Result(PASSED) for name in ("test_it.py::a[1]", "test_it.py::a[2]", "test_it.py::b")})
    patched = Report(
        {"test_it.py::a[1]": Result(FAILED), "test_it.py::a[2]": Result(FAILED), "test_it.py::b": Result(PASSED)}
    )

    verdict = judge(stock, patched, Expected("", {"1.0.0": 1}, (CHANGE,)), "1.0.0", never)

    assert verdict.ok
    assert verdict.overruled == {"test_it.py::a[1]", "test_it.py::a[2]"}


@pytest.mark.parametrize("patched", [report(a=PASSED), report(a=PASSED, b=FAILED)])
def test_an_expected_change_that_did_not_come_is_told(patched: Report) -> None:
    verdict = judge(report(a=PASSED), patched, Expected("", {"1.0.0": 1}, (CHANGE,)), "1.0.0", never)

    assert verdict.problems == ("test_it.py::a still passes, or never did: its row is to be removed",)


def test_a_net_that_has_shrunk_is_told() -> None:
    verdict = judge(report(a=PASSED), report(a=PASSED), Expected("", {"1.0.0": 2}, ()), "1.0.0", never)

    assert not verdict.ok
    assert "only 1 tests pass on the unpatched base, 2 are the minimum" in verdict.problems[0]


# region expected-changes.toml

ROW = '[[change]]\ntest = "t.py::a"\ncontract = "T1"\nwhy = "because"\nreplaced_by = "t.py::b"\n'


def load_expected(project: Project, text: str) -> Expected:
    project.layout.series("1.0").mkdir(exist_ok=True)
    (project.layout.series("1.0") / "expected-changes.toml").write_text(text)
    return expected.load(project.layout, "1.0", {"T1"})


def test_expected_changes_are_read(project: Project) -> None:
    found = load_expected(project, f'[minimum]\n"1.0.0" = 7\n\n{ROW}')

    assert found.minimum_of("1.0.0") == 7
    assert found.changes == (Change("t.py::a", "T1", "because", "t.py::b"),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("minimum = 1", "a [minimum] table and [[change]] rows, nothing else"),
        ("other = 1", "a [minimum] table and [[change]] rows, nothing else"),
        ("change = 1", "a [minimum] table and [[change]] rows, nothing else"),
        ("change = [1]", "a [minimum] table and [[change]] rows, nothing else"),
        ('minimum = { "1.0.0" = "many" }', "the minimum of 1.0.0 is not a number of tests"),
        ('minimum = { "1.0.0" = 0 }', "the minimum of 1.0.0 is not a number of tests"),
        (ROW.replace('why = "because"', ""), "change 1 needs test, contract, why, replaced_by"),
        (ROW.replace("because", " "), "change 1 needs test, contract, why, replaced_by"),
        (ROW + 'more = "x"', "change 1 needs test, contract, why, replaced_by"),
        (ROW + ROW.replace("T1", "T2"), "change 2: T2 is no contract line that a base of 1.0 promises"),
        (ROW.replace("t.py::b", "t.py"), "change 1: test and replaced_by are ids of tests"),
        ("[", "cannot be read"),
    ],
)
def test_expected_changes_that_say_something_else_are_refused(project: Project, text: str, said: str) -> None:
    with pytest.raises(PatchsetError) as refused:
        load_expected(project, text)

    assert said in refused.value.what
    assert refused.value.where == "patches/1.0/expected-changes.toml"
    assert refused.value.exit_code == 2


def test_a_base_without_a_minimum_is_told(project: Project) -> None:
    found = load_expected(project, '[minimum]\n"1.0.0" = 7\n')

    with pytest.raises(PatchsetError, match="has no minimum for 1\\.1\\.0"):
        found.minimum_of("1.1.0")
