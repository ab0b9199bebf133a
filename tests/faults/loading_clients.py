"""Sends requests to a daemon on many connections until this process is killed. Each connection waits for the reply, and
pauses.

Prints a line after the first replies. Arguments: the daemon's runtime directory, the number of connections, the mean
pause in seconds. With a pause of 0 the connections send as fast as the daemon replies.
"""

from __future__ import annotations

import contextlib
import heapq
import random
import sys
import time
from pathlib import Path

from support_peers import Peer, connected

from precompiled import wire


def main(runtime_dir: Path, connections: int, pause_s: float) -> None:
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(connected(runtime_dir)) for _ in range(connections)]
        request(peers)
        print("loading", flush=True)
        if pause_s:
            at_random(peers, pause_s)
        while True:
            request(peers)


def request(peers: list[Peer]) -> None:
    for peer in peers:
        peer.send(wire.Stats())
    for peer in peers:
        peer.receive()


def at_random(peers: list[Peer], pause_s: float) -> None:
    """Each connection pauses for a random time, at most 2 * ``pause_s``, before each request."""
    numbers = random.Random(0)
    due = [(time.monotonic() + numbers.uniform(0, 2 * pause_s), number) for number in range(len(peers))]
    heapq.heapify(due)
    while True:
        at, number = due[0]
        time.sleep(max(0.0, at - time.monotonic()))
        request([peers[number]])
        heapq.heapreplace(due, (time.monotonic() + numbers.uniform(0, 2 * pause_s), number))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
