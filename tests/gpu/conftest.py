"""Fixtures of this folder's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support_host import new_host
from support_triton import Machine, tools


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with new_host() as host:
        yield Machine(host, tools(tmp_path))
