"""Prints lines of precompiled beside the program's own output, on standard error.

Only rank 0 prints. The lines keep clear of the program's progress bars, and of prompts and full-screen programs.
"""

from __future__ import annotations

import os
import select
import sys
from typing import Any

from precompiled.client.run_recorder import place

# Erases a progress bar in the cursor's line. tqdm draws the bar again below the line.
_ERASE = b"\r\x1b[K"


class TerminalLines:
    """Prints lines unless the setting ``progress`` is "off"."""

    def __init__(self, progress: str) -> None:
        self.wanted = progress != "off"
        self._always = progress == "always"

    def are_shown(self) -> bool:
        """Whether this process prints lines. Only rank 0 prints lines. It needs a terminal or a notebook, unless
        the setting ``progress`` is "always".
        """
        if not self.wanted or sys.stderr is None or place(os.environ).rank != 0:
            return False
        return self._always or _is_notebook() or sys.stderr.isatty()

    def say(self, text: str) -> bool:
        """Print a line. Returns false if standard error cannot take a line now."""
        line, stream = f"precompiled: {text}\n", sys.stderr
        # rich.live replaces sys.stderr while it shows bars, and prints lines above them.
        if type(stream).__module__.partition(".")[0] in ("ipykernel", "rich") or not _has_descriptor(stream):
            stream.write(line)
            stream.flush()
            return True
        fd = stream.fileno()
        if not _takes_lines(fd):
            return False
        # Bypass Python's buffer. While the terminal is paused (Ctrl-S), this thread would hold the buffer's lock, and
        # the program would have to wait for the lock.
        os.write(fd, (_ERASE if os.isatty(fd) and _shows_tqdm() else b"") + line.encode())
        return True


def _is_notebook() -> bool:
    return type(sys.stderr).__module__.partition(".")[0] == "ipykernel"


def _has_descriptor(stream: Any) -> bool:
    try:
        return int(stream.fileno()) >= 0
    except (AttributeError, OSError):
        return False


def _takes_lines(fd: int) -> bool:
    """Whether a line can be written now. The write must not block, and the terminal must be in canonical mode. Programs
    that show a prompt or use the whole terminal switch this mode off.
    """
    import termios

    if os.isatty(fd) and not termios.tcgetattr(fd)[3] & termios.ICANON:
        return False
    return bool(select.select([], [fd], [], 0)[1])


def _shows_tqdm() -> bool:
    bars = sys.modules.get("tqdm.std")
    return bars is not None and len(bars.tqdm._instances) > 0
