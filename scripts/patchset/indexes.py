"""Run pip and uv with the user's index settings and nothing else of their configuration.

Where packages come from is the user's to say (a mirror, a proxy, a certificate). Everything else that a configuration
file or a variable can set (targets, constraints, resolution, build options) would change what is made here.
Standard library only: the environment of the tools is made with it.
"""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

PIP_SETTINGS = frozenset(
    {
        "cache-dir",
        "cert",
        "client-cert",
        "default-timeout",
        "extra-index-url",
        "find-links",
        "index-url",
        "keyring-provider",
        "no-index",
        "proxy",
        "retries",
        "timeout",
        "trusted-host",
    }
)
UV_SETTINGS = frozenset(
    {
        "allow-insecure-host",
        "cache-dir",
        "extra-index-url",
        "find-links",
        "index",
        "index-strategy",
        "index-url",
        "keyring-provider",
        "native-tls",
        "no-index",
        "offline",
        "system-certs",
    }
)
UV_VARIABLES = frozenset(
    {
        "UV_CACHE_DIR",
        "UV_DEFAULT_INDEX",
        "UV_EXTRA_INDEX_URL",
        "UV_FIND_LINKS",
        "UV_HTTP_TIMEOUT",
        "UV_INDEX",
        "UV_INDEX_STRATEGY",
        "UV_INDEX_URL",
        "UV_INSECURE_HOST",
        "UV_KEYRING_PROVIDER",
        "UV_NATIVE_TLS",
        "UV_OFFLINE",
        "UV_SYSTEM_CERTS",
    }
)


def _without(environ: Mapping[str, str], *prefixes: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not name.startswith(prefixes)}


def pip_env(python: Path, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for `python -m pip`.

    Args:
        python: The interpreter whose pip is asked for the user's settings.
        environ: The user's environment; the process's when left out.

    Returns:
        The environment without configuration files and `PIP_*` variables but for the index settings found in them.
    """
    source = dict(os.environ if environ is None else environ)
    listed = subprocess.run(
        # As loud as it gets, since a configuration can make pip quiet and the list is empty then.
        [str(python), "-m", "pip", "-vvvvv", "config", "list"],
        env=_without(source, "PYTHON"),
        capture_output=True,
        text=True,
        check=False,
    )
    env = _without(source, "PIP_", "PYTHON", "VIRTUAL_ENV")
    found: dict[str, dict[str, str]] = {}
    for line in listed.stdout.splitlines():
        key, equals, value = line.partition("=")
        section, dot, name = key.rpartition(".")
        if equals and dot and name in PIP_SETTINGS:
            found.setdefault(section, {})[name] = str(ast.literal_eval(value))
    # The order in which pip itself lets one override the other.
    for section in ("global", "install", "download", ":env:"):
        for name, value in found.get(section, {}).items():
            env["PIP_" + name.upper().replace("-", "_")] = value
    env.update(PIP_CONFIG_FILE=os.devnull, PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1", PYTHONNOUSERSITE="1")
    return env
