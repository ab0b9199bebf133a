"""Architectures of several kinds, by the code of `make architectures`: compiled by the daemon, hit the next time."""

from __future__ import annotations

import pytest

from benchmarks.architectures.rows import Name
from benchmarks.architectures.table import Row, examine
from benchmarks.models.suite import TASKS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

# One of each kind that the everyday tests lack; all of them: `make architectures`.
NAMES: list[Name] = [(name, task) for name in ("llama", "t5", "vit", "mixtral", "unet") for task in TASKS]


@pytest.fixture(scope="module")
def rows() -> dict[Name, Row]:
    """All of them in two processes, one after the other."""
    return {(row.architecture, row.task): row for row in examine(NAMES, print)}


@pytest.mark.parametrize("name", NAMES, ids="-".join)
def test_an_architecture_is_compiled_by_the_daemon_and_equal_to_eager(rows: dict[Name, Row], name: Name) -> None:
    row = rows[name]
    assert row.right, row
