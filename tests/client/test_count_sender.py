"""Tests that a process whose graphs all hit sends its counts while it runs. If a signal ends the process, its exit
handlers cannot send the counts.
"""

from __future__ import annotations

import os
import signal
import threading

import pytest
from support_host import Host

from precompiled.client import count_sender
from precompiled.client.count_sender import CountSender

pytestmark = pytest.mark.integration

SERVER = """
import sys, torch, precompiled
precompiled.enable()
torch.compile(lambda x: x.sin() + 1)(torch.ones(3))
precompiled.wait()
print("@served", flush=True)
sys.stdin.read() if len(sys.argv) > 1 else None
"""


@pytest.mark.fault("program")
def test_server_that_a_signal_ends_is_counted(served: Host) -> None:
    served.program("-c", SERVER).ended()
    before = served.stats().hits
    server = served.program("-c", "import time\n" + SERVER.replace("sys.stdin.read()", "time.sleep(3600)"), "serve")
    server.wait_for("served")
    while served.stats().hits == before:  # if no count arrives, the test's time limit ends this loop
        assert server.process.poll() is None, server.text()
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    assert served.stats().hits == before + 1


def test_changes_are_sent_together_and_the_thread_ends() -> None:
    sent = threading.Semaphore(0)
    sender = CountSender(sent.release)
    for _ in range(2):
        for _ in range(100):
            sender.changed()
        threads = [thread for thread in threading.enumerate() if thread.name == "precompiled-counts"]
        assert len(threads) == 1
        threads[0].join(60 * count_sender.QUIET_S)
        assert sent.acquire(blocking=False) and not sent.acquire(blocking=False)
