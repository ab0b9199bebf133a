"""Tests of programs that close descriptors that they did not open. For example, a program that becomes a daemon closes
all descriptors.

Graphs are pending meanwhile. Files and sockets that the program opens afterwards get the descriptor numbers of
precompiled's connection. Precompiled must neither write to these files and sockets nor close them.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support_daemon import TIMEOUT_S, DaemonUnderTest, alive, graph, processes_with, running_daemon, wait_until
from support_host import Host

from precompiled import wire
from precompiled.client import start
from precompiled.client.ask import request
from precompiled.client.connection import DaemonConnection

pytestmark = [pytest.mark.fault("program"), pytest.mark.integration]


def our_sockets() -> set[int]:
    """Return the descriptors of this process that are sockets."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found.add(int(name))
    return found


@contextlib.contextmanager
def taken(numbers: set[int], directory: Path) -> Iterator[set[int]]:
    """Assign each number in ``numbers`` to a new file or socket of the program. Yield the descriptors of the sockets'
    other ends.

    At the end, check that precompiled has neither closed these files and sockets nor written to them.
    """
    peers: dict[int, socket.socket] = {}
    for number in sorted(numbers):
        if number % 2:
            own, peers[number] = socket.socketpair()
            with own:
                os.dup2(own.fileno(), number)
            peers[number].send(b"to %d" % number)
        else:
            own_file = os.open(directory / f"own-{number}", os.O_RDWR | os.O_CREAT)
            os.dup2(own_file, number)
            os.close(own_file)
        os.write(number, b"of %d" % number)
    yield {peer.fileno() for peer in peers.values()}
    for number in sorted(numbers):
        if number % 2:
            assert os.read(number, 100) == b"to %d" % number
            os.close(number)
            with peers[number] as peer:
                assert peer.recv(100) == b"of %d" % number and peer.recv(100) == b""
        else:
            assert os.pread(number, 100, 0) == b"of %d" % number
            os.close(number)


def test_connection_whose_descriptors_were_closed_is_replaced(tmp_path: Path) -> None:
    go, codes = tmp_path / "go", []
    with running_daemon(tmp_path) as daemon:
        before = our_sockets()
        connection = DaemonConnection(daemon.settings)
        published: set[str] = set()

        def on_reply(reply: wire.DaemonMessage) -> None:
            if isinstance(reply, wire.Rejected):
                codes.append(reply.code)
            elif getattr(reply, "state", "") == "published":
                published.add(reply.id)  # type: ignore[union-attr]

        held, later, child = daemon.submit(), daemon.submit(), daemon.submit()
        try:
            connection.submit(held, graph("wait-for", path=str(go)), on_reply)
            assert connection.flush(TIMEOUT_S)
            ours = our_sockets() - before
            assert len(ours) == 3, "two to wake the thread, one to the daemon"
            with taken(ours, tmp_path) as others:
                connection.submit(later, graph(), on_reply)
                assert connection.flush(TIMEOUT_S), "over a new connection"
                again = our_sockets() - before - ours - others
                assert len(again) == 3, "and no more"
                with taken(again, tmp_path):
                    pid = os.fork()
                    if pid == 0:  # the child must not close files of the program whose numbers the parent's sockets had
                        status = 1
                        try:
                            connection.submit(child, graph(), lambda reply: None)
                            if connection.flush(TIMEOUT_S):
                                connection.close()
                                status = 0
                        finally:
                            os._exit(status)
                    assert os.waitpid(pid, 0)[1] == 0
                    go.touch()
                    wait_until(lambda: {held.id, later.id} <= published)
                    wait_until((daemon.store / child.key).exists)
                    connection.close()
        finally:
            connection.close()
        assert codes == [] and our_sockets() == before


def test_program_that_closes_descriptors_can_start_a_daemon(tmp_path: Path) -> None:
    place = DaemonUnderTest(tmp_path)
    before = our_sockets()
    try:
        starting = start.Starting(place.settings)
        with taken(our_sockets() - before, tmp_path):
            outcome = starting.result(TIMEOUT_S)
        assert outcome.kind != "timed-out", "the client waited for a report that was lost"
        pid = wait_until(lambda: _pid_of(place))
        request(place.settings, wire.Stop())
        wait_until(lambda: not alive(pid))
    finally:
        wait_until(lambda: processes_with(str(tmp_path)) == [], "no process is left")


def _pid_of(place: DaemonUnderTest) -> int:
    with contextlib.suppress(Exception):
        return int(request(place.settings, wire.Status()).pid)
    return 0


PROGRAM = """if 1:
    import json, os, socket, sys, torch, precompiled
    precompiled.enable()
    def first(x): return torch.sin(x) * 3 + x.sum()
    def second(x): return torch.cos(x) * 5 + x.sum()
    x = torch.arange(8.0)
    wrong = []
    def call(compiled, function):
        if not torch.allclose(compiled(x), function(x)):
            wrong.append(function.__name__)

    compiled = torch.compile(first)
    call(compiled, first)
    os.closerange(3, 256)
    numbers, peers = [], []
    for number in range(40):
        if number % 2:
            own, peer = socket.socketpair()
            numbers.append(own.detach())
            peers.append(peer)
        else:
            numbers.append(os.open(f"own-{number}", os.O_RDWR | os.O_CREAT))
        os.write(numbers[-1], b"of the program")
    call(compiled, first)
    waited = precompiled.wait(300)
    call(compiled, first)
    again = torch.compile(second)
    call(again, second)
    waited = waited and precompiled.wait(300)
    call(again, second)
    for number in numbers[::2]:
        if os.pread(number, 100, 0) != b"of the program":
            wrong.append(os.pread(number, 100, 0).hex())
        os.close(number)
    for number, peer in zip(numbers[1::2], peers):
        os.close(number)
        found = peer.recv(100), peer.recv(100)
        if found != (b"of the program", b""):
            wrong.append(repr(found))
    print(json.dumps([wrong, waited, [[graph.state, graph.source] for graph in precompiled.report()]]))
"""


def test_graphs_are_compiled_although_the_program_closed_all_descriptors(served: Host) -> None:
    assert served.program("-c", PROGRAM).result() == [[], True, [["compiled", "swap"], ["compiled", "swap"]]]
