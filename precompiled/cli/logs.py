"""daemon logs: print the end of the daemon's log, or the command that shows systemd's journal."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import click

from precompiled.cli.app import command
from precompiled.cli.checks_daemon import UNIT
from precompiled.cli.output import Output, fitting
from precompiled.client.daemon_link import listener
from precompiled.core import paths
from precompiled.core.config import Settings
from precompiled.core.errors import DaemonError
from precompiled.core.regular_file import open_regular

DEFAULT_LINES = 20
LOOK_S = 0.2  # seconds between two reads with --follow


@command("logs", examples=["precompiled daemon logs -n 100", "precompiled daemon logs -f"])
@click.option(
    "--lines",
    "-n",
    type=click.IntRange(min=0),
    metavar="N",
    help="Print the last N lines. Default: what fits a screen, and 20 lines in a pipe.",
)
@click.option("--follow", "-f", is_flag=True, help="Print new lines as they come, until Ctrl-C.")
def logs_command(out: Output, settings: Settings, lines: int | None, follow: bool) -> int:
    """Print the end of the daemon's log.

    Prints the path of the log file to standard error. If systemd runs the daemon, prints the `journalctl` command that
    shows its log.
    """
    most = DEFAULT_LINES if lines is None else lines
    if shown := _journal(settings):
        shown += f" -n {most}" + (" -f" if follow else "")
        text = f"systemd runs the daemon, and its journal has the log. Run:\n  {shown}"
        out.result({"path": None, "command": shown, "lines": []}, text)
        return 0
    path = settings.log_path
    try:
        file = _open(path)
    except OSError as error:
        raise DaemonError(
            f"there is no log to read at {path} ({error.strerror})",
            "`precompiled daemon start` starts a daemon that writes a log",
            code="no-log",
        ) from error
    found = [line.rstrip("\n") for line in deque(file, most)]
    if lines is None and sys.stdout.isatty():
        found = found[-fitting(found[::-1], 1) :]  # beside the line with the path
    out.note(f"precompiled: {path}")
    out.result({"path": str(path), "command": None, "lines": found}, "\n".join(found))
    if follow and not out.as_json:
        with suppress(KeyboardInterrupt):
            _follow(path, file)
    file.close()
    return 0


def _journal(settings: Settings) -> str:
    """The command that shows the daemon's log, if systemd runs the daemon; otherwise ""."""
    if settings.runtime_dir == paths.SYSTEM_RUNTIME_DIR:
        return f"journalctl -u {UNIT}"
    group = _group_of_listener(settings)
    if f"/{UNIT}" not in group:
        return ""
    return f"journalctl --user -u {UNIT}" if "/user.slice/" in group else f"journalctl -u {UNIT}"


def _group_of_listener(settings: Settings) -> str:
    """The control group of the process that listens on the daemon's socket; "" if there is none."""
    found = listener(settings)
    try:
        return "" if found is None else Path(f"/proc/{found.pid}/cgroup").read_text()
    except OSError:
        return ""


def _follow(path: Path, file: TextIO) -> None:
    """Print new lines of a log file. Continues after the daemon rotates the file (at 1 MiB)."""
    while True:
        newer = _replacement(path, file)  # before reading the rest of the old file, so that no line is lost
        for line in file:
            click.echo(line, nl=False)
        sys.stdout.flush()
        if newer is None:
            time.sleep(LOOK_S)
        else:
            file.close()
            file = newer


def _replacement(path: Path, file: TextIO) -> TextIO | None:
    """The new file at ``path``, if ``file`` was rotated; otherwise None."""
    try:
        if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
            return None
        return _open(path)
    except OSError:
        return None


def _open(path: Path) -> TextIO:
    return open(path, encoding="utf-8", errors="replace", opener=open_regular)
