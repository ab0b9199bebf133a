"""Sends requests to a daemon on many connections, as fast as it replies, until it is killed.

Prints a line after the first replies. Arguments: the daemon's runtime directory, the number of connections.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from support_peers import connected

from precompiled import wire


def main(runtime_dir: Path, connections: int) -> None:
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(connected(runtime_dir)) for _ in range(connections)]
        for number in range(sys.maxsize):
            for peer in peers:
                peer.send(wire.Stats())
            for peer in peers:
                peer.receive()
            if number == 0:
                print("loading", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
