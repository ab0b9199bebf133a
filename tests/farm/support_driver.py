"""Provides a farm whose driver is the test."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import Any

import pytest
from support_store import payload

from precompiled import wire
from precompiled.farm import farm
from precompiled.farm.messages import Ended, Node, Nodes, Result, ToDriver, receive, send
from precompiled.store import packed

INTERPRETER = wire.Interpreter(sys.executable, sys.prefix, "3", "2", "", {})


def job(key: str, store: str = "/s") -> wire.Job:
    """Return a job as the daemon gives it to a courier."""
    return wire.Job(
        id=key[:4],
        key=key,
        store=store,
        device="cpu",
        graph=b"{}",
        compile_threads=1,
        failure_ttl_s=1.0,
        may_park=True,
        offer=wire.Offer(INTERPRETER, 60.0),
    )


def body(key: str) -> bytes:
    """Return an artifact in the form in which a node sends it."""
    plain = payload(key)
    return packed.pack(plain.manifest, plain.files)


class Drivers:
    """Plays the driver of each farm that starts in this process. A sleeping process stands for the driver's process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.streams: list[socket.socket] = []
        monkeypatch.setattr(farm, "start_with_stream", self._start)

    def _start(self, *arguments: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
        assert arguments == ("-m", "precompiled.farm.driver", "--address", "auto")
        ours, theirs = socket.socketpair()
        self.streams.append(theirs)
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]), ours

    def says_nodes(self, *places: int) -> None:
        send(self.streams[-1], Nodes([Node("n", "1.2.3.4", number) for number in places]))

    def says_ended(self, number: int, outcome: Any, *artifacts: bytes, **more: str) -> None:
        send(self.streams[-1], Ended(number, Result(outcome, list(artifacts), **more)))

    def hears(self) -> Any:
        """Return the farm's next message to the driver."""
        self.streams[-1].settimeout(30.0)
        return receive(self.streams[-1].makefile("rb", buffering=0), ToDriver)

    def close(self) -> None:
        for stream in self.streams:
            stream.close()
