"""Fixtures of this folder. The tests of this folder use the support modules of tests/store and tests/remote, too."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "store"))
sys.path.insert(0, str(Path(__file__).parent.parent / "remote"))

from support_calls import FailingCalls

from precompiled.store.artifacts import Store


@pytest.fixture(scope="session")
def failing_calls() -> Iterator[FailingCalls]:
    """A process whose system calls fail on demand."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler (cc), to build the library that lets system calls fail")
    with tempfile.TemporaryDirectory(prefix="pc-calls-") as folder, FailingCalls(Path(folder)) as found:
        yield found


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")
