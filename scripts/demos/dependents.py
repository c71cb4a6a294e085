"""Import packages that build on core where they are installed: `dependents.py <version of core> <package> ...`.

Core is still the version that it was, and every module of every package can be imported.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import sys
from collections.abc import Iterator


def problems(version: str, packages: list[str]) -> Iterator[str]:
    """Yield what is wrong."""
    installed = importlib.metadata.version("agent-framework-core")
    if installed != version:
        yield f"agent-framework-core is {installed}, not {version}"
    for package in packages:
        try:
            module = importlib.import_module(package)
            for inner in pkgutil.walk_packages(module.__path__, f"{package}."):
                importlib.import_module(inner.name)
        except Exception as error:
            yield f"{package} cannot be imported: {type(error).__name__}: {error}"


def main() -> int:
    """Say what is wrong and return the exit status."""
    wrong = [*problems(sys.argv[1], sys.argv[2:])]
    print("\n".join(wrong) or "ok")  # noqa: T201
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
