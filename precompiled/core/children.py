"""Starts a child process that is connected to this process by a stream."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any


def start_with_stream(
    *arguments: str, pass_fds: Sequence[int] = (), **options: Any
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start ``python *arguments --control-fd N`` in the root directory, without input. Raises OSError.

    Returns the child and this process's end of the stream. N is the child's end.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        fd = theirs.fileno()
        try:
            process = subprocess.Popen(
                [sys.executable, *arguments, "--control-fd", str(fd)],
                stdin=subprocess.DEVNULL,
                cwd="/",
                pass_fds=(fd, *pass_fds),
                **options,
            )
        except BaseException:
            ours.close()
            raise
    return process, ours
