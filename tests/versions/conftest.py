"""Provides interpreters with other torch versions, and skips loudly if one is not available."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for ``import environments``

import environments

MODE = "PRECOMPILED_VERSION_TESTS"


@pytest.fixture(scope="session")
def python_of() -> Callable[[str], str]:
    """Return a function that finds the interpreter with a torch version. Without such an interpreter, the function
    skips the test, or fails it with PRECOMPILED_VERSION_TESTS=require. With PRECOMPILED_VERSION_TESTS=installed, the
    function installs no interpreter.
    """
    mode = os.environ.get(MODE)

    def find(version: str) -> str:
        try:
            return environments.python_of(version, may_install=mode != "installed")
        except environments.Unavailable as error:
            text = f"NOT TESTED WITH TORCH {version}: {error}"
            if mode == "require":
                pytest.fail(text)
            print(f"\n{text}", file=sys.__stderr__, flush=True)
            pytest.skip(text)

    return find
