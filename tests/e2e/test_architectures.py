"""Tests that model architectures of several kinds are compiled by the daemon, and hit in the next process."""

from __future__ import annotations

import pytest

from benchmarks.architectures.rows import Name
from benchmarks.architectures.table import Row, examine
from benchmarks.models.suite import TASKS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

# One architecture of each kind that no everyday test has. `make architectures` runs all.
NAMES: list[Name] = [(name, task) for name in ("llama", "t5", "vit", "mixtral", "unet") for task in TASKS]


@pytest.fixture(scope="module")
def rows() -> dict[Name, Row]:
    """The rows of two successive processes, each of which runs all of these architectures."""
    return {(row.architecture, row.task): row for row in examine(NAMES, print)}


@pytest.mark.parametrize("name", NAMES, ids="-".join)
def test_an_architecture_is_compiled_by_the_daemon_and_equal_to_eager(rows: dict[Name, Row], name: Name) -> None:
    row = rows[name]
    assert row.right, row
