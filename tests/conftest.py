"""Fixtures of the whole suite."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # support_*.py

from support_host import Host, new_host


@pytest.fixture
def host() -> Iterator[Host]:
    """A host of the test's own: empty store, no daemon yet."""
    with new_host() as found:
        yield found


@pytest.fixture(scope="module")
def shared_host() -> Iterator[Host]:
    """One host for a whole module: its worker stays warm."""
    with new_host() as found:
        found.start_daemon()
        yield found


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """This process is a process group of one."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
