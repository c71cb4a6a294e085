"""`make prove`: every patch does what it says, shown by its own tests.

For each patch, the tests that its header names are red on the tree before it and green on the tree after it, and ruff
and pyright are clean after it. Red means collected, run, and failed in the call phase by something else than an import:
a test that is not found, cannot be imported, is skipped or fails in its setup says nothing about the patch. Of a test
with parameters that is named without them, at least one must be red, every other one red or passed, and all of them,
the same ones, green.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

import click

from patchset import behaviour, checks, console
from patchset.base import BASE_REF
from patchset.checkout import SERIES_REF
from patchset.envs import check_python
from patchset.errors import PatchsetError, SeveralErrors
from patchset.options import base_option, for_each, pass_layout
from patchset.paths import Layout
from patchset.prepared import Base, prepare
from patchset.proc import Git
from patchset.releases import Release, load
from patchset.reports import Outcome, Report
from patchset.series import Patch, load_series
from patchset.suites import covers, files_of, tree

STEP = "prove"

_PREPARING = re.compile(r"none \(needed by (.+)\)", re.DOTALL)
_IMPORT = ("ImportError", "ModuleNotFoundError")
_PACKAGE = "packages/core/"


@dataclass
class Proof:
    """What was found out about one patch."""

    patch: Patch
    tests: tuple[str, ...]
    red: int = 0
    green: int = 0
    problems: list[str] = field(default_factory=list[str])

    def cells(self, version: str) -> list[str]:
        """Return the row of the summary."""
        tests = [str(len(self.tests)), str(self.red), str(self.green)] if self.tests else ["preparing", "", ""]
        return [version, self.patch.path.name, *tests, "NOT PROVED" if self.problems else "proved"]


def read_claim(patch: Patch, later: Sequence[Patch]) -> Proof:
    """Return what a patch claims about its tests, with what is wrong with the claim itself.

    Args:
        patch: The patch.
        later: The patches after it.
    """
    values = patch.trailer("Tests")
    if not values:
        return Proof(patch, (), problems=["its header has no Tests: trailer"])
    if len(values) == 1 and (claim := _PREPARING.fullmatch(values[0])):
        wanted = " ".join(claim[1].split())
        if not later:
            return Proof(patch, (), problems=["it prepares for a later patch and is the last one"])
        if wanted not in {other.subject for other in later}:
            return Proof(patch, (), problems=[f"no later patch has the subject that needs it: {wanted}"])
        return Proof(patch, ())
    tests = [test.removeprefix(_PACKAGE) for value in values for test in value.split()]
    wrong = [test for test in tests if not re.fullmatch(r"tests/[^:]+\.py(::[^:]+)+", test)]
    problems = [f"{test} is not the id of a test, as in tests/core/test_turn_scope.py::test_it" for test in wrong]
    return Proof(patch, tuple(dict.fromkeys(test for test in tests if test not in wrong)), problems=problems)


def _found(named: str, report: Report) -> dict[str, Outcome | str]:
    """Return the outcomes of a named test by id; an import that failed inside of it is told as a text."""
    return {
        name: test.message if test.outcome is Outcome.FAILED and test.message.startswith(_IMPORT) else test.outcome
        for name, test in report.tests.items()
        if covers(named, name)
    }


def _absent(named: str, report: Report) -> str:
    (file,) = files_of([named])
    if file in report.uncollected:
        return f"cannot be imported: {report.uncollected[file]}"
    if file in report.left_out:
        return f"is skipped as a whole: {report.left_out[file]}"
    return "is not found"


def _say(outcome: Outcome | str) -> str:
    if isinstance(outcome, str):
        return f"fails by an import: {outcome}"
    return {
        Outcome.PASSED: "passes",
        Outcome.FAILED: "fails",
        Outcome.ERROR: "fails in its setup or teardown",
        Outcome.SKIPPED: "is skipped",
        Outcome.XFAILED: "is expected to fail",
        Outcome.XPASSED: "is expected to fail and passes",
    }[outcome]


def judge(proof: Proof, before: Report, after: Report) -> None:
    """Hold the named tests of a patch against what they did before and after it.

    Args:
        proof: The claim; what is wrong with it is added.
        before: What its tests did on the tree before the patch.
        after: What they did on the tree after it.
    """
    for named in proof.tests:
        was, now = _found(named, before), _found(named, after)
        wrong: list[str] = []
        if not was:
            wrong.append(f"{named} {_absent(named, before)} before the patch")
        for name, outcome in sorted(was.items()):
            if outcome not in {Outcome.FAILED, Outcome.PASSED}:
                wrong.append(f"{name} {_say(outcome)} before the patch, which is not red")
        if was and not wrong and Outcome.FAILED not in was.values():
            wrong.append(f"{named} passes already before the patch")
        proof.red += not wrong
        late: list[str] = []
        if not now:
            late.append(f"{named} {_absent(named, after)} after the patch")
        for name, outcome in sorted(now.items()):
            if outcome is not Outcome.PASSED:
                detail = f": {after.tests[name].message}" if outcome is Outcome.FAILED else ""
                late.append(f"{name} {_say(outcome)} after the patch{detail}")
        if was and now and was.keys() != now.keys():
            changed = ", ".join(sorted(was.keys() ^ now.keys()))
            late.append(f"{named} has other parameters before and after the patch: {changed}")
        proof.green += not late
        proof.problems += wrong + late


def check_style(base: Base, commit: str) -> list[str]:
    """Return what ruff and pyright say about core of a commit."""
    found: list[str] = []
    with tree(base.layout, base.checkout, commit) as made:
        for check in (checks.ruff_check, checks.ruff_format, checks.pyright):
            try:
                check(base.env, made.package)
            except PatchsetError as error:
                found.append(f"{error.what} after the patch" + (f"\n{error.output}" if error.output else ""))
    return found


def prove_series(base: Base) -> list[Proof]:
    """Prove every patch of the series of a base.

    Returns:
        A proof for every patch, in their order.

    Raises:
        PatchsetError: The series is empty, or is not what is applied.
    """
    patches = load_series(base.layout, base.line)
    git = Git(base.checkout, step=STEP)
    commits = [base.applied.base, *git("rev-list", "--reverse", f"{BASE_REF}..{SERIES_REF}").split()]
    if not patches or len(commits) != len(patches) + 1:
        raise PatchsetError(
            STEP,
            f"the series of {base.line} has {len(patches)} patches, and {len(commits) - 1} are applied",
            where=base.layout.show(base.layout.series(base.line)),
        )
    proofs = [read_claim(patch, patches[patch.index :]) for patch in patches]
    for commit in commits:
        base.core(commit)

    def tests(number: int) -> Report:
        # One run serves the patch that leads to the commit and the one that goes on from it.
        named = [test for proof in proofs[max(number - 1, 0) : number + 1] for test in proof.tests]
        return behaviour.run_named(base, commits[number], named, f"{base.name}-prove-{number}-of-{len(patches)}")

    def style(number: int) -> list[str]:
        return check_style(base, commits[number])

    with console.step(f"{base.name}: prove {len(patches)} patches") as progress, ThreadPoolExecutor(2) as pool:
        reports = [pool.submit(tests, number) for number in range(len(commits))]
        styles = [pool.submit(style, number) for number in range(1, len(commits))]
        for number, _ in enumerate(as_completed([*reports, *styles]), 1):
            progress.note(f"({number} of {len(reports) + len(styles)} parts)")
        for number, proof in enumerate(proofs):
            judge(proof, reports[number].result(), reports[number + 1].result())
            proof.problems += styles[number].result()
        progress.outcome = f"{sum(not proof.problems for proof in proofs)} of {len(proofs)} proved"
    return proofs


def failure(version: str, proof: Proof) -> PatchsetError:
    """Return what a person is told of a patch that is not proved."""
    return PatchsetError(
        f"{version}: {STEP}",
        f"{proof.patch.name} is not proved",
        output="\n".join(proof.problems),
        why=proof.patch.why,
        next="mend the patch in the checkout, or its Tests: trailer, or the test; then: "
        f"make export BASE={version} && make prove BASE={version}",
    )


@click.command("prove", short_help="Show that every patch does what it says.")
@base_option
@pass_layout
def command(layout: Layout, base: str) -> None:
    """Show for every patch that its tests are red before it and green after it, and that it is clean."""
    bases = load(layout).resolve(base)
    check_python()
    rows: list[list[str]] = []

    def one(release: Release) -> None:
        proofs = prove_series(prepare(layout, release))
        rows.extend(proof.cells(release.version) for proof in proofs)
        if errors := [failure(release.version, proof) for proof in proofs if proof.problems]:
            raise SeveralErrors(errors)

    try:
        for_each(bases, one)
    finally:
        if rows:
            console.table("make prove", ["base", "patch", "tests", "red before", "green after", "result"], rows)
    console.say(f"{len(rows)} patches proved")
