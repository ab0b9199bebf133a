"""Tests of what the test suite ensures for the programs that it starts."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

# A test run that ignores a signal, as below nohup or in a shell's background job. The run prints the exit status of the
# program that it starts.
RUN = """\
import signal, subprocess, sys
signal.signal({number}, signal.SIG_IGN)
sys.path.insert(0, {tests!r})
import conftest
program = "import signal; signal.raise_signal({number})"
print(subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL).returncode)
signal.raise_signal({number})
print("continues")
"""


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_signal_that_the_test_run_ignores_ends_its_programs(number: signal.Signals) -> None:
    text = RUN.format(number=int(number), tests=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(-number), "continues"]
