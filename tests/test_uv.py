"""Uv runs with the user's index settings and with nothing else of their configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomlkit

from patchset.errors import PatchsetError
from patchset.paths import Layout
from patchset.uv import uv, uv_env

PRIVATE = "https://user:secret@packages.example.invalid/simple"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "project")


def settings(layout: Layout, environ: dict[str, str]) -> dict[str, object]:
    return tomlkit.parse(Path(uv_env(layout, environ)["UV_CONFIG_FILE"]).read_text()).unwrap()


def home_with(tmp_path: Path, text: str) -> dict[str, str]:
    path = tmp_path / "home/.config/uv/uv.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return {"HOME": str(tmp_path / "home"), "XDG_CONFIG_DIRS": str(tmp_path / "absent")}


def test_variables_that_change_what_is_made_are_dropped(layout: Layout) -> None:
    environ = {
        "HOME": "/nonexistent",
        "PATH": "/bin",
        "UV_INDEX_URL": PRIVATE,
        "UV_CACHE_DIR": "/cache",
        "UV_PRERELEASE": "allow",
        "UV_CONSTRAINT": "/mine.txt",
        "UV_PROJECT_ENVIRONMENT": "/venv",
        "UV_PYTHON": "2.7",
        "VIRTUAL_ENV": "/venv",
        "PYTHONPATH": "/mine",
    }

    env = uv_env(layout, environ)

    assert env["UV_INDEX_URL"] == PRIVATE
    assert env["UV_CACHE_DIR"] == "/cache"
    assert env["UV_PYTHON_DOWNLOADS"] == "never"
    assert not env.keys() & (environ.keys() - {"HOME", "PATH", "UV_INDEX_URL", "UV_CACHE_DIR"})


def test_a_users_file_gives_its_index_settings_and_nothing_else(layout: Layout, tmp_path: Path) -> None:
    environ = home_with(
        tmp_path,
        f'index-url = "{PRIVATE}"\nnative-tls = true\nprerelease = "allow"\nrequired-version = "==0.1"\n'
        'exclude-newer = "2020-01-01"\n[pip]\nno-deps = true\n',
    )

    assert settings(layout, environ) == {"index-url": PRIVATE, "native-tls": True}
    assert (layout.build / "uv.toml").stat().st_mode & 0o077 == 0


def test_the_file_that_a_variable_names_counts_alone(layout: Layout, tmp_path: Path) -> None:
    environ = home_with(tmp_path, f'index-url = "{PRIVATE}"\n')
    named = tmp_path / "named.toml"
    named.write_text("no-index = true\n")

    assert settings(layout, environ | {"UV_CONFIG_FILE": str(named)}) == {"no-index": True}
    assert settings(layout, environ | {"UV_NO_CONFIG": "1"}) == {}


def test_a_users_file_that_cannot_be_read_is_told(layout: Layout, tmp_path: Path) -> None:
    with pytest.raises(PatchsetError, match=r"uv\.toml cannot be read"):
        uv_env(layout, home_with(tmp_path, "index-url = \n"))


def test_the_index_of_pip_is_taken_when_uv_has_none(layout: Layout, tmp_path: Path) -> None:
    environ = {
        "HOME": "/nonexistent",
        "PIP_INDEX_URL": PRIVATE,
        "PIP_CERT": "/cert.pem",
        "PIP_CONFIG_FILE": "/dev/null",
    }

    env = uv_env(layout, environ)
    assert env["UV_DEFAULT_INDEX"] == PRIVATE
    assert env["SSL_CERT_FILE"] == "/cert.pem"

    assert "UV_DEFAULT_INDEX" not in uv_env(layout, environ | {"UV_INDEX_URL": "https://other.example.invalid/simple"})
    own = home_with(tmp_path, 'index-url = "https://other.example.invalid/simple"\n')
    assert "UV_DEFAULT_INDEX" not in uv_env(layout, environ | own)
    assert uv_env(layout, environ | {"SSL_CERT_FILE": "/mine.pem"})["SSL_CERT_FILE"] == "/mine.pem"


def test_a_project_around_the_build_folder_is_not_read(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    layout.root.mkdir()
    (layout.root / "pyproject.toml").write_text('[tool.uv]\nrequired-version = "==0.0.1"\n')
    monkeypatch.setenv("UV_NO_CONFIG", "1")

    assert uv(layout, "--version", step="x", what="x").stdout.startswith(b"uv ")
    assert b"version" not in uv(layout, "cache", "dir", step="x", what="x").stderr


def test_a_failure_says_what_to_do_next(layout: Layout) -> None:
    with pytest.raises(PatchsetError) as failed:
        uv(layout, "no-such-command", step="lock", what="it cannot be locked")

    assert failed.value.render().startswith("lock: it cannot be locked\n")
    assert "next:  check the network and the index settings" in failed.value.render()
