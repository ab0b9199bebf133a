"""What the kernel says of processes and peers, read from real ones."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil

from precompiled.core import kernel


def test_a_process_whose_name_holds_a_parenthesis_is_read(tmp_path: Path) -> None:
    program = tmp_path / "a) b (c"
    program.symlink_to(sys.executable)
    with subprocess.Popen([program, "-c", "input()"], stdin=subprocess.PIPE) as process:
        found = kernel.stat_of(process.pid)
        assert found is not None and found.parent == os.getpid() and found.started > 0
        assert psutil.Process(process.pid).ppid() == found.parent
        assert process.stdin is not None
        process.stdin.close()
    assert kernel.stat_of(process.pid) is None


def test_a_peer_is_the_process_that_connected(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as connected:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        connected.connect(str(tmp_path / "socket"))
        assert kernel.peer_of(connected) == (os.getpid(), os.geteuid(), os.getegid())
