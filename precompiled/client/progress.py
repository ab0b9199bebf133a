"""Prints a line on the terminal when graphs compile in the background, and a line when all are compiled.

If the program ends before all are compiled, a different second line says so. Graphs that a program adds later get two
lines of their own, up to MAX_BATCHES times. The thread that awaits artifacts prints the lines, so they do not delay the
program. No function of this file raises or waits for a terminal.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from precompiled.client.ledger import GraphCalls
from precompiled.client.swap import State
from precompiled.client.terminal_lines import TerminalLines
from precompiled.core import interruptions
from precompiled.core.words import format_count, format_list, human_seconds

log = logging.getLogger("precompiled.client.progress")

# Seconds before the first line, so that the line counts several graphs. A faster compile needs no line.
PATIENCE_S = 1.0
# A program whose shapes always change would otherwise print lines without end.
MAX_BATCHES = 5


class AwaitedGraph(Protocol):
    """The part of awaited.Awaited that this file uses."""

    calls: GraphCalls
    since: float


class Progress:
    """Prints the lines when they are due. Used by one thread at a time."""

    def __init__(self, lines: TerminalLines, *, waits: bool, raises: bool = False) -> None:
        """``waits``: whether the program waits for each graph (mode "wait" or ``require``). ``raises``: whether a graph
        that is not served raises an error (``require``).
        """
        self._lines = lines
        self._over = not lines.wanted
        self._waits, self._raises = waits, raises
        self._graphs: list[GraphCalls] = []
        self._since = 0.0  # time.monotonic(); 0 before the first awaited graph
        self._said = False
        self._batches = 0  # how many second lines have been printed

    def look(self, awaited: Sequence[AwaitedGraph], *, blocked: bool = False) -> None:
        """Print the lines that are due. ``awaited``: the awaited graphs that do not run compiled yet.

        ``blocked``: whether the program is in ``precompiled.wait()``.
        """
        if self._over:
            return
        try:
            self._look(awaited, blocked)
        except Exception as error:  # noqa: BLE001 - an error must not prevent a swap
            self._over = True
            log.info("no progress is shown: %s", error)

    def _look(self, awaited: Sequence[AwaitedGraph], blocked: bool) -> None:
        for item in awaited:
            self._since = self._since or item.since
            if item.calls not in self._graphs:
                self._graphs.append(item.calls)
        if awaited and not self._said and time.monotonic() - self._since >= PATIENCE_S:
            if not self._lines.are_shown():
                self._over = True
            else:
                self._said = self._lines.say(self._begins(len({item.calls for item in awaited}), blocked))
        if not awaited and self._graphs:
            if self._said:
                self._lines.say(self._ends())
                self._batches += 1
                self._over = self._batches == MAX_BATCHES
            self._graphs, self._since, self._said = [], 0.0, False

    def ended(self, left: int, goes_on: Callable[[], bool]) -> None:
        """Print the last line of a program that ends while ``left`` graphs do not run compiled.

        ``goes_on``: returns whether the daemon continues to compile these graphs.
        """
        if self._over or not left:
            return
        self._over = True
        which = "1 graph was" if left == 1 else f"{left} graphs were"
        try:
            if self._said or self._lines.are_shown():
                then = (
                    "the daemon continues, for the next run"
                    if goes_on()
                    else "no daemon runs, so the next run submits again"
                )
                self._lines.say(f"the program ended before {which} compiled; {then}")
        except Exception as error:  # noqa: BLE001 - an error must not disturb the program's end
            interruptions.pass_on(error)
            log.info("no progress is shown: %s", error)

    def _begins(self, pending: int, blocked: bool) -> str:
        more = "more " if self._batches else ""
        text = format_count(pending, f"{more}graph compiles", f"{more}graphs compile") + " in the background"
        if not self._waits and not blocked:
            return f"{text}; running eager"
        return f"{text}; the program waits for {'it' if pending == 1 else 'them'}"

    def _ends(self) -> str:
        lasted = human_seconds(time.monotonic() - self._since)
        in_pieces = [calls for calls in self._graphs if calls.swap.state is State.PENDING]
        compiled = [*in_pieces, *(calls for calls in self._graphs if calls.swap.state is State.COMPILED)]
        how = "compiled in pieces" if in_pieces else "compiled"
        if len(compiled) < len(self._graphs):
            number = f"{len(compiled)} of {format_count(len(self._graphs), 'graph')}"
            return f"{number} compiled after {lasted}; {self._unserved()}"
        # If the program calls all graphs equally often, the line also names the number of calls before the swap. A line
        # about later batches of graphs never names this number.
        calls = [item.calls for item in compiled]
        flips = [item.calls_before_flip for item in compiled if item.calls_before_flip is not None]
        if self._waits or self._batches or len(flips) < len(compiled) or max(calls) - min(calls) > 1 or not max(flips):
            return f"{how} after {lasted}"
        # The line names the last eager call, because the program may make no further call.
        return f"{how} after call {max(flips)} ({lasted})"

    def _unserved(self) -> str:
        """Say how the unserved graphs run, and which command shows the reasons."""
        states = Counter(calls.swap.state for calls in self._graphs)
        parts = []
        if number := states[State.BYPASSED]:
            are = "is compiled in this process, at its" if number == 1 else "are compiled in this process, at their"
            parts.append(f"{number} {are} next call")
        if (number := states[State.FAILED]) and self._raises:
            parts.append(f"{number} {'raises' if number == 1 else 'raise'} NotServed")
        elif number:
            parts.append(f"{number} {'stays' if number == 1 else 'stay'} eager")
        return format_list(parts) + "; `precompiled explain --run last` says why"
