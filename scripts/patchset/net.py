"""Upstream's suite as a net: run on the unpatched and on the patched core of a base, in the same environment."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection
from pathlib import Path

from patchset import console, reports, suites
from patchset.prepared import Base
from patchset.reports import Report
from patchset.suites import counts, existing_files, run_tests, slug, tree, workers


def run_suite(base: Base, core: Path, title: str, only: Collection[str] | None = None) -> Report:
    """Run upstream's suite, as the unpatched base has it, on an installed core.

    Args:
        base: The base.
        core: The folder that has core installed.
        title: What progress and log are called.
        only: Test ids, to be run alone and in one process; all of the suite when left out.
    """
    with console.step(title) as progress, tree(base.layout, base.checkout, base.applied.base, base.suite) as made:
        paths = ["tests"] if only is None else existing_files(made, only)
        count = workers() if only is None else 0
        report = run_tests(base.env, made, core, paths, log=slug(title), only=only, workers=count)
        progress.outcome = counts(report)
    return report


def run_stock(base: Base) -> Report:
    """Return what the suite reports on the unpatched base, run once per base, environment and suite."""
    runner = b"".join(Path(module.__file__ or "").read_bytes() for module in (reports, suites))
    parts = (base.applied.base, base.env.digest, base.suite.digest, hashlib.sha256(runner).hexdigest())
    key = hashlib.sha256(" ".join(parts).encode()).hexdigest()
    kept = base.layout.build / "results" / f"stock-{base.name}-{key[:32]}.json"
    if kept.is_file():
        return Report.from_json(json.loads(kept.read_text(encoding="utf-8")))
    report = run_suite(base, base.stock, f"{base.name}: upstream's suite, unpatched")
    kept.parent.mkdir(parents=True, exist_ok=True)
    draft = kept.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(report.to_json()), encoding="utf-8")
    draft.replace(kept)
    return report


def run_again(base: Base, tests: frozenset[str]) -> tuple[Report, Report]:
    """Run some tests of the suite alone, on the unpatched and on the patched core."""
    title = f"{base.name}: {len(tests)} tests once more, alone"
    stock = run_suite(base, base.stock, f"{title}, unpatched", tests)
    return stock, run_suite(base, base.patched, f"{title}, patched", tests)
