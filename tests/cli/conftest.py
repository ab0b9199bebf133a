"""Fixtures for the tests of the command line."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support_artifacts import publish_artifact
from support_cli import KEYS, precompiled

from precompiled.store import artifact_format as fmt
from precompiled.store.artifacts import Store


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Environment variables that set the test's own directories, and no other setting of precompiled."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRECOMPILED")}
    return {
        **kept,
        "PRECOMPILED_CACHE_DIR": str(tmp_path / "cache"),
        "PRECOMPILED_RUNTIME_DIR": str(tmp_path / "run"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "COLUMNS": "200",
    }


@pytest.fixture
def stopped(environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """Like ``environment``. Afterwards stops the daemon that the test may have left."""
    yield environment
    precompiled(environment, "daemon", "stop")


@pytest.fixture
def settled(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Applies the settings of ``environment`` to the test process."""
    for name in list(os.environ):
        if name.startswith("PRECOMPILED"):
            monkeypatch.delenv(name)
    for name, value in environment.items():
        if name.startswith(("PRECOMPILED", "XDG")):
            monkeypatch.setenv(name, value)


@pytest.fixture
def store(environment: dict[str, str], settled: None) -> Store:
    """A store with artifacts for two keys and a failure record. The settings of the test process name this store.

    The first key has two variants.
    """
    found = Store(Path(environment["PRECOMPILED_CACHE_DIR"]))
    for key, guards in ((KEYS[0], "s0 < 5"), (KEYS[0], "s0 > 4"), (KEYS[1], "")):
        publish_artifact(found, key, size=2048, name="Model.forward [0/0]", components={"graph": "g1"}, guards=guards)
    found.publish_failure(fmt.Failure(KEYS[2], "Bad.forward", "compile-failed", "[red]it broke[/red]", time.time(), 60))
    return found
