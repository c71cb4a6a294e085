"""Hold the private names of core that released packages use against the patched core: each is there and fits its users.

Nothing is imported: sources are read, so that a use in a branch that no test reaches counts as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

CORE = "agent_framework"
OVERRIDABLE = frozenset({"after_run", "before_run", "filter_new_messages", "get_messages", "save_messages"})
"""Public methods that released packages override, and that core calls."""

Node = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Use:
    """How a package uses a name."""

    places: list[str] = field(default_factory=list[str])
    overridden: bool = False
    """Whether it has a method of that name: what core passes, the method has to take."""
    passed: set[str | None] = field(default_factory=set[str | None])
    """The keywords that its calls pass; None for all that a mapping may hold."""

    def may_pass(self, keyword: str) -> bool:
        """Return whether a call may pass an argument by this keyword."""
        return keyword in self.passed or None in self.passed


@dataclass(frozen=True)
class Signature:
    """What a function takes, but for its types."""

    positional: tuple[tuple[str, bool], ...]
    """Name, and whether it has to be given."""
    keywords: tuple[tuple[str, bool], ...]
    more_positional: bool
    more_keywords: bool
    waits: bool

    @classmethod
    def of(cls, node: Node) -> Signature:
        """Read the signature off a definition."""
        arguments = node.args
        names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
        required = len(names) - len(arguments.defaults)
        return cls(
            tuple((name, number < required) for number, name in enumerate(names)),
            tuple(
                (argument.arg, default is None)
                for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            ),
            arguments.vararg is not None,
            arguments.kwarg is not None,
            isinstance(node, ast.AsyncFunctionDef),
        )

    def breaks(self, new: Signature, use: Use) -> str | None:
        """Return why somebody who uses this signature does not get on with the new one, or None."""
        if self.waits != new.waits:
            return "is no coroutine any more" if self.waits else "is a coroutine now"
        if [name for name, _ in new.positional[: len(self.positional)]] != [name for name, _ in self.positional]:
            return "takes other positional arguments"
        taken = dict(new.positional) | dict(new.keywords)
        known = dict(self.positional) | dict(self.keywords)
        gone = [name for name in known if name not in taken and not new.more_keywords and use.may_pass(name)]
        if gone:
            return f"no longer takes {', '.join(gone)}"
        if needed := [name for name, required in taken.items() if required and not known.get(name, False)]:
            return f"has to be given {', '.join(needed)}"
        if (self.more_positional and not new.more_positional) or (self.more_keywords and not new.more_keywords):
            return "takes no further arguments any more"
        if use.overridden and (added := [name for name in taken if name not in known]):
            return f"takes {', '.join(added)} as well, which an override does not"
        return None


@dataclass(frozen=True)
class Definition:
    """A name that core defines: a function, a class, a value or an attribute that a method sets."""

    kind: str
    signature: Signature | None = None
    value: str | None = None
    """Of a constant that is a text, such as the key of a state."""


Definitions = dict[str, dict[str, Definition]]
"""By name, and by where it is: `_agents.BaseAgent._run_after_providers`."""


def definitions(site: Path) -> Definitions:
    """Return what the core that is installed in a folder defines."""
    found: Definitions = {}
    for module, body in _modules(site):
        for name, where, definition in _defined(body, module, within_class=False):
            found.setdefault(name, {})[where] = definition
    return found


def offered(site: Path) -> Definitions:
    """Return what the core that is installed in a folder defines, and under it what a module has from another one."""
    found = definitions(site)
    for module, body in _modules(site):
        for node in body:
            if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
                package = module.rpartition(".")[0]
                source = f"{package}.{node.module}" if package else node.module
                for alias in node.names:
                    if definition := found.get(alias.name, {}).get(f"{source}.{alias.name}"):
                        name = alias.asname or alias.name
                        found.setdefault(name, {}).setdefault(f"{module}.{name}", definition)
    return found


def _modules(site: Path) -> Iterator[tuple[str, list[ast.stmt]]]:
    for path in sorted((site / CORE).rglob("*.py")):
        yield ".".join(path.relative_to(site / CORE).with_suffix("").parts), ast.parse(path.read_bytes()).body


def _defined(body: list[ast.stmt], scope: str, *, within_class: bool) -> Iterator[tuple[str, str, Definition]]:
    for node in body:
        if isinstance(node, Node):
            yield node.name, f"{scope}.{node.name}", Definition("function", Signature.of(node))
            if within_class:
                for name in _set_on_self(node):
                    yield name, f"{scope}.{name}", Definition("attribute")
        elif isinstance(node, ast.ClassDef):
            yield node.name, f"{scope}.{node.name}", Definition("class")
            yield from _defined(node.body, f"{scope}.{node.name}", within_class=True)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            constant = node.value.value if isinstance(node.value, ast.Constant) else None
            for target in targets:
                if isinstance(target, ast.Name):
                    text = constant if isinstance(constant, str) else None
                    yield target.id, f"{scope}.{target.id}", Definition("value", value=text)
        else:
            for inner in ("body", "orelse", "finalbody"):
                yield from _defined(getattr(node, inner, []), scope, within_class=within_class)


def _set_on_self(function: Node) -> Iterator[str]:
    for node in ast.walk(function):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name
            case _:
                pass


def uses(folder: Path) -> dict[str, Use]:
    """Return the names of core that a package uses and that are not core's public interface.

    A private attribute counts whatever object it is of: it is told apart from the package's own ones by `problems`,
    which looks at names that core has.
    """
    found: dict[str, Use] = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            for name, overridden in _used(node):
                use = found.setdefault(name, Use())
                use.places.append(f"{path.relative_to(folder.parent)}:{getattr(node, 'lineno', 1)}")
                use.overridden |= overridden
            if isinstance(node, ast.Call) and (called := _called(node.func)):
                found.setdefault(called, Use()).passed.update(keyword.arg for keyword in node.keywords)
    return {name: use for name, use in found.items() if use.places}


def _called(function: ast.expr) -> str | None:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else None


def _used(node: ast.AST) -> Iterator[tuple[str, bool]]:
    if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] == CORE:
        private = any(_private(part) for part in (node.module or "").split("."))
        yield from ((alias.name, False) for alias in node.names if private or _private(alias.name))
    elif isinstance(node, ast.Attribute) and _private(node.attr):
        yield node.attr, False
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _private(node.value):
        yield node.value, False
    elif isinstance(node, ast.ClassDef):
        methods = (inner for inner in node.body if isinstance(inner, Node))
        yield from ((method.name, True) for method in methods if _private(method.name) or method.name in OVERRIDABLE)


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name.isidentifier()


def of_core(used: Mapping[str, Use], core: Definitions) -> dict[str, Use]:
    """Return the uses of names, or of texts of constants, that core has."""
    texts = {definition.value for places in core.values() for definition in places.values()}
    return {name: use for name, use in used.items() if name in core or name in texts}


def problems(used: Mapping[str, Use], stock: Definitions, patched: Definitions) -> list[str]:
    """Return what the patched core no longer offers to a package that gets on with the unpatched one."""
    found: list[str] = []
    for name, use in sorted(of_core(used, stock).items()):
        for where, old in _named(name, stock):
            new = patched.get(where.rpartition(".")[2], {}).get(where)
            if new is None:
                why = "is gone"
            elif old.signature and new.signature:
                why = old.signature.breaks(new.signature, use)
            else:
                why = None if (old.kind, old.value) == (new.kind, new.value) else "is something else"
            if why:
                found.append(f"{where} {why}; used in {', '.join(use.places[:3])}")
    return found


def _named(name: str, core: Definitions) -> Iterator[tuple[str, Definition]]:
    yield from core.get(name, {}).items()
    for places in core.values():
        yield from ((where, definition) for where, definition in places.items() if definition.value == name)
