"""Support: a program on a pseudo-terminal, and the contents of its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

TIMEOUT_S = 60.0
# Makes standard input the controlling terminal. Without a controlling terminal, Ctrl-C sends no signal.
_TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
_CONTROL = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b[()=>78].?|([\r\n\b\x07])|([^\x1b\r\n\b\x07]+)")


class Screen:
    """The screen of a terminal that understands text, new lines, cursor positions and erasing.

    The tested programs use nothing else.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._lines = [""] * rows
        self._row = self._column = 0

    def feed(self, text: str) -> None:
        for numbers, letter, control, plain in _CONTROL.findall(text):
            if plain:
                self._write(plain)
            elif control == "\r":
                self._column = 0
            elif control == "\n":
                self._down()
            elif letter:
                self._sequence(numbers, letter)

    def _write(self, text: str) -> None:
        for character in text:
            if self._column >= self.columns:
                self._column = 0
                self._down()
            line = self._lines[self._row].ljust(self._column)
            self._lines[self._row] = line[: self._column] + character + line[self._column + 1 :]
            self._column += 1

    def _down(self) -> None:
        if self._row + 1 < self.rows:
            self._row += 1
        else:
            self._lines = [*self._lines[1:], ""]

    def _sequence(self, numbers: str, letter: str) -> None:
        if letter == "H":
            row, _, column = (numbers or "1;1").partition(";")
            self._row, self._column = int(row or 1) - 1, int(column or 1) - 1
        elif letter == "K":
            self._lines[self._row] = self._lines[self._row][: self._column]
        elif letter == "J":
            self._lines[self._row] = self._lines[self._row][: self._column]
            self._lines[self._row + 1 :] = [""] * (self.rows - self._row - 1)
            if numbers == "2":
                self._lines = [""] * self.rows

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._lines).rstrip("\n")


class Terminal:
    """A running program, its screen, and all of its output."""

    def __init__(self, process: subprocess.Popen[bytes], master: int, columns: int, rows: int) -> None:
        self.process, self.screen, self.written = process, Screen(columns, rows), ""
        self._master = master
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        held = b""
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # EIO: the program has closed its end of the pseudo-terminal
                data = b""
            if not data:
                break
            # Hold back an escape sequence that may be incomplete: the next read returns the rest.
            held += data
            at = held.rfind(b"\x1b")
            whole, held = (held, b"") if at < 0 or len(held) - at > 16 else (held[:at], held[at:])
            with self._changed:
                text = whole.decode(errors="replace")
                self.written += text
                self.screen.feed(text)
                if held and re.fullmatch(rb"\x1b(\[[?0-9;]*[A-Za-z].*|[()=>78].?)", held, re.DOTALL):
                    text, held = held.decode(errors="replace"), b""
                    self.written += text
                    self.screen.feed(text)
                self._changed.notify_all()

    def wait_for(self, text: str | Callable[[str], bool]) -> str:
        """Wait until the screen shows the text, and return the text of the whole screen."""
        shows = (lambda screen: text in screen) if isinstance(text, str) else text
        deadline = time.monotonic() + TIMEOUT_S
        with self._changed:
            while not shows(self.screen.text()):
                assert self._thread.is_alive() and time.monotonic() < deadline, f"not shown: {text}\n{self.written}"
                self._changed.wait(1.0)  # with a timeout, because the end of a program does not notify
            return self.screen.text()

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        with self._changed:
            self.screen = Screen(columns, rows)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def ended(self) -> int:
        """Wait until the program has ended and all output is read. Returns the exit status."""
        status = self.process.wait(TIMEOUT_S)
        self._thread.join(TIMEOUT_S)
        return status


@contextmanager
def on_terminal(
    command: Sequence[str], env: Mapping[str, str], cwd: Path, *, columns: int = 80, rows: int = 24
) -> Iterator[Terminal]:
    """Run ``command`` with a pseudo-terminal as its standard input, output and error."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    kept = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", _TAKE_TERMINAL, *command],
        env={**kept, "TERM": "xterm-256color"},
        cwd=cwd,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    terminal = Terminal(process, master, columns, rows)
    try:
        yield terminal
    finally:
        if process.poll() is None:
            process.kill()
        terminal.ended()
        os.close(master)
