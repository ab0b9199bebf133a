"""Test that a run of all suites with a deadline ends by itself, and reports what it did not run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.integration
def test_no_test_starts_after_the_deadline() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/core/test_durable.py"]
    environment = {**os.environ, "PRECOMPILED_TESTS_UNTIL": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "no time was left for it" in done.stdout
    assert " passed" not in done.stdout
