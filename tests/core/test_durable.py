"""What takes a file's place is whole, or nothing is left of it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from precompiled.core import durable


def test_what_takes_a_files_place_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "unit.pth"
    target.write_text("before")
    with durable.replacing(target, 0o600) as file:
        file.write(b"after")
        assert target.read_text() == "before"
        assert [path.name for path in tmp_path.glob("*.pth")] == [target.name]  # site would execute half a line
    assert target.read_text() == "after" and os.listdir(tmp_path) == [target.name]


def test_after_an_error_nothing_of_it_is_left(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), durable.replacing(tmp_path / "file", 0o600) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []


def test_modes_for_others_count_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with durable.replacing(tmp_path / "file", 0o644, sync=False):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644
