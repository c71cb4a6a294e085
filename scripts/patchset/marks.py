"""Read contract marks and skips of the behaviour tests from their source, without running or importing anything."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SKIPS = frozenset({"skip", "skipif", "xfail", "importorskip", "skipUnless", "skipIf", "skipTest", "expectedFailure"})


@dataclass(frozen=True)
class MarkedTest:
    """One test function."""

    name: str
    """Its id below its file, as `TestLoop::test_once`."""
    number: int
    """The line of its definition."""
    lines: frozenset[str]
    """The contract lines that it is about."""
    skip: str | None
    """What can skip it, as it is written."""


def read_tests(path: Path) -> list[MarkedTest]:
    """Return the tests of a file; marks of a class and of the module (`pytestmark`) count for each of theirs.

    Raises:
        SyntaxError: The file is not Python.
    """
    module = ast.parse(path.read_bytes(), str(path))
    return list(_tests(module.body, "", _marks_of_body(module.body), _skip_in(_own_statements(module.body))))


def _tests(body: list[ast.stmt], prefix: str, lines: frozenset[str], skip: str | None) -> Iterator[MarkedTest]:
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        own = lines | frozenset(line for decorator in node.decorator_list for line in _contract_lines(decorator))
        decorated = skip or _skip_in(node.decorator_list)
        if isinstance(node, ast.ClassDef):
            marked = own | _marks_of_body(node.body)
            inner = decorated or _skip_in(_own_statements(node.body))
            yield from _tests(node.body, f"{prefix}{node.name}::", marked, inner)
        elif node.name.startswith("test"):
            yield MarkedTest(f"{prefix}{node.name}", node.lineno, own, decorated or _skip_in(node.body))


def _own_statements(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return what a module or class does when it is imported."""
    return [
        node
        for node in body
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import)
    ]


def _marks_of_body(body: list[ast.stmt]) -> frozenset[str]:
    assigned = (node for node in body if isinstance(node, ast.Assign))
    marks = (node.value for node in assigned if any(_is_pytestmark(target) for target in node.targets))
    return frozenset(line for mark in marks for line in _contract_lines(mark))


def _is_pytestmark(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and target.id == "pytestmark"


def _contract_lines(expression: ast.AST) -> Iterator[str]:
    for node in ast.walk(expression):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "contract":
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value


def _skip_in(nodes: list[ast.stmt] | list[ast.expr]) -> str | None:
    for top in nodes:
        for node in ast.walk(top):
            if isinstance(node, ast.Attribute) and node.attr in _SKIPS and _is_of_a_test_tool(node.value):
                return ast.unparse(node)
    return None


def _is_of_a_test_tool(owner: ast.expr) -> bool:
    """Whether an attribute is one of `pytest`, `pytest.mark`, `unittest` or a test case."""
    return ast.unparse(owner) in {"pytest", "pytest.mark", "mark", "unittest", "self"}
