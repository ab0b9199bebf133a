"""Tests of replacing a file: the new file appears complete, and an error leaves nothing behind."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from precompiled.core import durable


def test_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    target = tmp_path / "unit.pth"
    target.write_text("before")
    with durable.replacing(target, 0o600) as file:
        file.write(b"after")
        assert target.read_text() == "before"
        # Python's site module would run even a half-written *.pth.
        assert [path.name for path in tmp_path.glob("*.pth")] == [target.name]
    assert target.read_text() == "after" and os.listdir(tmp_path) == [target.name]


def test_error_during_a_replacement_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), durable.replacing(tmp_path / "file", 0o600) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []


@pytest.mark.fault("file-systems")
def test_requested_mode_overrides_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with durable.replacing(tmp_path / "file", 0o644, sync=False):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644
