"""Gives each test its own home folder, and deletes its deployments at the end."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import Home

import candlepower
from candlepower import Client


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in ("HF_TOKEN", "CANDLEPOWER_BIN", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    yield Home(tmp_path)
    for deployment in Client().list():
        deployment.delete()


@pytest.fixture(scope="session", autouse=True)
def the_installed_wheel() -> None:
    """Checks that the installed package is tested, not the source beside these tests."""
    assert "site-packages" in Path(candlepower.__file__).parts, candlepower.__file__
