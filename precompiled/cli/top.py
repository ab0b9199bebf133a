"""status --watch: a live view of the host, which accepts keys on a terminal. Without a terminal, prints plain lines."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from precompiled.cli import top_view as view
from precompiled.cli.daemon import ask_daemon, fields
from precompiled.cli.jobs import act
from precompiled.cli.output import Output
from precompiled.cli.top_choices import Choices, chosen
from precompiled.core.config import Settings
from precompiled.core.errors import DaemonError
from precompiled.store.job_phases import under_way
from precompiled.store.run_records import runs

ANSWER_TIMEOUT_S = 2.0
# Escape sequences of arrows and function keys, and single characters.
_KEYS = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)
_ARROWS = {"A": "up", "B": "down"}
EXPLAIN_TIMEOUT_S = 30.0


def watch(out: Output, settings: Settings, interval: float, once: bool) -> int:
    """Show programs, graphs, workers and the queue until Ctrl-C. With ``once`` or --json, print one view."""
    rates = view.Rates()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that is not UTF-8 has no bars
    if out.as_json or once:
        seen = look(settings, rates)
        size = shutil.get_terminal_size((120, 10_000))
        rows = 200 if not sys.stdout.isatty() else max(size.lines, 24)
        lines = view.screen(seen, rates, Choices(), size.columns, rows, colour=False)
        out.result(dataclasses.asdict(seen), "\n".join(lines[:-1]).rstrip())
        return 0
    try:
        if sys.stdout.isatty() and sys.stdin.isatty():
            _live(settings, rates, interval)
        else:
            _lines(settings, rates, interval)
    except KeyboardInterrupt:
        pass
    return 0


def look(settings: Settings, rates: view.Rates) -> view.Look:
    from precompiled import wire

    status = stats = None
    problem = ""
    try:
        status, stats = (fields(ask_daemon(settings, what, ANSWER_TIMEOUT_S)) for what in (wire.Status(), wire.Stats()))
    except DaemonError as error:
        problem = "the first graph that the store lacks starts one" if error.code == "no-daemon" else error.message
    rates.add(time.monotonic(), stats)
    root = settings.cache_dir
    return view.look(time.time(), runs(root), status, stats, problem, under_way(root))


def _lines(settings: Settings, rates: view.Rates, interval: float) -> None:
    shown = ""
    while True:
        text = view.line(look(settings, rates), rates)
        if text != shown:
            shown = text
            click.echo(f"{time.strftime('%H:%M:%S')}  {text}")
            sys.stdout.flush()
        time.sleep(interval)


# ---------------------------------------------------------------- on a terminal


def _live(settings: Settings, rates: view.Rates, interval: float) -> None:
    choices = Choices()
    shown: list[str] = []
    size = os.terminal_size((0, 0))
    colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    with _screen():
        seen, next_look = look(settings, rates), time.monotonic() + interval
        while True:
            # shutil.get_terminal_size() would prefer COLUMNS and LINES, which do not change with the window.
            now_size = os.get_terminal_size(sys.stdout.fileno())
            if now_size != size:
                size, shown = now_size, []
                _write("\x1b[H\x1b[2J")
            lines = view.screen(seen, rates, choices, size.columns, size.lines, colour=colour)
            # Write only the changed lines: the connection may be slow.
            changed = [at for at, line in enumerate(lines) if at >= len(shown) or shown[at] != line]
            _write("".join(f"\x1b[{at + 1};1H{lines[at]}\x1b[K" for at in changed))
            shown = lines
            # A key ends the wait at once. The loop notices a new window size within a second.
            if select.select([sys.stdin], [], [], max(0.0, min(next_look - time.monotonic(), 1.0)))[0]:
                for key in _keys():
                    if key in ("q", "\x04") and not choices.typing and not choices.page:
                        return
                    choices = choices.key(key, chosen(seen.graphs, choices))
                    if choices.asked == "explain":
                        page = _explanation(settings, choices.typed)
                        choices = dataclasses.replace(choices, asked="", typed="", page=page)
                    elif choices.asked:
                        said = act(settings, choices.asked, choices.typed)
                        choices, next_look = dataclasses.replace(choices, asked="", typed="", said=said), 0.0
            if time.monotonic() >= next_look:
                seen, next_look = look(settings, rates), time.monotonic() + interval


def _keys() -> Iterator[str]:
    data = os.read(sys.stdin.fileno(), 1024)
    if not data:
        raise KeyboardInterrupt  # the terminal was closed
    for key in _KEYS.findall(data.decode(errors="ignore")):
        if len(key) == 1:
            yield key
        elif key[-1] in _ARROWS:
            yield _ARROWS[key[-1]]


def _explanation(settings: Settings, key: str) -> tuple[str, ...]:
    """The output of `precompiled explain` for a graph."""
    command = [sys.executable, "-m", "precompiled", "explain", key, "--cache-dir", str(settings.cache_dir)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=EXPLAIN_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return (str(error),)
    return tuple((done.stdout or done.stderr).splitlines())


@contextmanager
def _screen() -> Iterator[None]:
    """Use the terminal's alternate screen, with line buffering and cursor off. Restores everything at the end."""
    import signal
    import termios
    import tty

    fd = sys.stdin.fileno()
    usual = termios.tcgetattr(fd)

    def leave(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        tty.setcbreak(fd)
        _write("\x1b[?1049h\x1b[?25l")
        yield
    finally:
        _write("\x1b[?25h\x1b[?1049l")
        termios.tcsetattr(fd, termios.TCSADRAIN, usual)
        for number, handler in before.items():
            signal.signal(number, handler)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
