"""`make status`: what the headers and the table say, as a table and as JSON."""

from __future__ import annotations

import json

from support import FIRST, SECOND, Project


def test_as_a_table(project: Project) -> None:
    project.series(FIRST, SECOND)
    project.release("0.9.0", line="1.0")
    project.release("0.8.0")
    out = project.good("status").out
    assert "1.0: 2 patches (+2 -2), serves 0.9.0+turnscope.1, 1.0.0+turnscope.1, written on 1.0.0" in out
    row = next(line for line in out.splitlines() if SECOND.subject in line)
    assert [cell.strip() for cell in row.strip("|│ ").replace("│", "|").split("|")] == [
        f"2 {SECOND.subject}",
        "1",
        "1",
        "1",
        "Ready",
        "#1",
    ]
    assert "known, not served: 0.8.0\nwithout BASE=: 1.0.0\n" in out


def test_as_json(project: Project) -> None:
    project.series(FIRST)
    project.release("0.8.0")
    (project.layout.patches / "2.0").mkdir()
    assert json.loads(project.good("status", "--json").out) == {
        "default": "1.0.0",
        "lines": [
            {
                "line": "1.0",
                "releases": ["1.0.0"],
                "wheels": ["1.0.0+turnscope.1"],
                "written_on": "1.0.0",
                "patches": [
                    {
                        "file": "0001-Python-Change-the-fifth-line.patch",
                        "subject": FIRST.subject,
                        "files": 1,
                        "added": 1,
                        "removed": 1,
                        "upstream_status": "Ready",
                        "resolves": ["https://example.invalid/issues/1"],
                        "remove_when": "the base has it",
                        "tests": ["packages/core/tests/core/test_it.py::test_it"],
                    }
                ],
            },
            {"line": "2.0", "releases": [], "wheels": [], "written_on": None, "patches": []},
        ],
        "known": ["0.8.0"],
    }
    assert project.layout.checkouts.exists() is False, "nothing is made for it"
