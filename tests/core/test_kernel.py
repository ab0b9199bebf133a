"""Tests of facts about processes and peers that the kernel reports, with real processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil

from precompiled.core import kernel


def test_stat_of_a_process_with_parentheses_in_its_name_is_parsed(tmp_path: Path) -> None:
    program = tmp_path / "a) b (c"
    program.symlink_to(sys.executable)
    with subprocess.Popen([program, "-c", "input()"], stdin=subprocess.PIPE) as process:
        found = kernel.stat_of(process.pid)
        assert found is not None and found.parent == os.getpid() and found.started > 0
        assert psutil.Process(process.pid).ppid() == found.parent
        assert process.stdin is not None
        process.stdin.close()
    assert kernel.stat_of(process.pid) is None


def test_peer_of_a_socket_is_the_process_that_connected(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as connected:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        connected.connect(str(tmp_path / "socket"))
        assert kernel.peer_of(connected) == (os.getpid(), os.geteuid(), os.getegid())
