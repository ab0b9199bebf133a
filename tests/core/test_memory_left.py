"""Tests that the free memory is the host's free memory or what the cgroup's limit leaves, whichever is less."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from precompiled.core import memory

GIB = 1 << 30
MEMINFO = f"MemTotal: {16 << 20} kB\nMemAvailable: {8 << 20} kB\nHugePages_Total: 0\n"


@pytest.mark.parametrize(
    ("limit", "current", "files", "expected"),
    [
        (None, 0, 0, 8),
        ("max", 0, 0, 8),
        (4 * GIB, 3 * GIB, 0, 1),
        (4 * GIB, 3 * GIB, 2 * GIB, 3),
        (64 * GIB, GIB, 0, 8),
    ],
)
def test_the_smaller_of_host_and_cgroup_counts(
    tmp_path: Path, limit: int | str | None, current: int, files: int, expected: int
) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{current}\n")
        (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {files}\nactive_file 0\n")
    assert memory.available_bytes(tmp_path / "meminfo", tmp_path) == expected * GIB


def test_this_host_and_process_have_plausible_values() -> None:
    assert 0 < memory.available_bytes() <= psutil.virtual_memory().total
    assert memory.resident_bytes() == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)
