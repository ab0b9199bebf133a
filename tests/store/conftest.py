"""A store in a temporary directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from precompiled.store.artifacts import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")
