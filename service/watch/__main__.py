"""``python -m precompiled.service.watch --control-fd N``: the watcher. The daemon starts and ends it."""

from __future__ import annotations

import argparse
import logging
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from precompiled.service.watch.watcher import Watcher


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m precompiled.service.watch", description="Started by the daemon.")
    parser.add_argument("--control-fd", type=int, required=True, help="the inherited socket")
    parser.add_argument("--runtime-dir", type=Path, required=True)
    parser.add_argument("--cache-dir", type=Path, required=True)
    parser.add_argument("--log", default="INFO")
    options = parser.parse_args(argv)
    logging.basicConfig(
        stream=sys.stderr, level=options.log.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    control = socket.socket(fileno=options.control_fd)
    control.set_inheritable(False)
    watcher = Watcher(control, options.runtime_dir, options.cache_dir)
    try:
        watcher.open()
        watcher.run()
    finally:
        watcher.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
