"""Tests that the daemon compiles model architectures of several kinds, and that the next process has cache hits."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

# One architecture of each kind that the everyday tests do not cover. `make architectures` runs all architectures.
NAMES = [(name, task) for name in ("llama", "t5", "vit", "mixtral", "unet") for task in ("training", "inference")]


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, str], Any]:
    """Runs all these architectures in two successive processes. Returns one row per architecture and task."""
    from benchmarks.architectures.table import examine  # imports transformers, which takes seconds at collection

    return {(row.architecture, row.task): row for row in examine(NAMES, print)}


@pytest.mark.parametrize("name", NAMES, ids="-".join)
def test_an_architecture_is_compiled_by_the_daemon_and_equal_to_eager(
    rows: dict[tuple[str, str], Any], name: tuple[str, str]
) -> None:
    row = rows[name]
    assert row.right, row
