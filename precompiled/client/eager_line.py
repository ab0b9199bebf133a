"""Prints a line about graphs that run eager because their compiled code is slower, for example::

    precompiled: 1 graph went back to eager: compiled code was slower (its calls took 28 ms, those of the earlier
    code 22 ms)
    precompiled: 1 graph stays eager (slower-than-eager); `precompiled explain` shows the times

A process prints at most MAX_LINES of these lines.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from precompiled.client.ledger import GraphReport
from precompiled.client.terminal_lines import TerminalLines
from precompiled.core import interruptions
from precompiled.core.errors import SLOWER_THAN_EAGER
from precompiled.core.words import format_count

log = logging.getLogger("precompiled.client.progress")

# A program whose graphs are slow one after another would otherwise print lines without end.
MAX_LINES = 5


class EagerLine:
    """Prints a line a moment after graphs were left to eager code. Thread-safe."""

    def __init__(self, lines: TerminalLines) -> None:
        self._lines = lines
        self._left = MAX_LINES
        self._said: set[str] = set()  # ids of graphs
        self._lock = threading.Lock()

    def look(self, reports: Sequence[GraphReport]) -> None:
        """Print the lines that are due. Never raises."""
        slower = [report for report in reports if report.reason == SLOWER_THAN_EAGER]
        try:
            with self._lock:
                new = [report for report in slower if report.id not in self._said]
                measured = [report for report in new if report.source is not None]
                recorded = [report for report in new if report.source is None]
                for text, due in ((_text_of_measured, measured), (_text_of_recorded, recorded)):
                    if due and self._left and self._lines.are_shown() and self._lines.say(text(due)):
                        self._left -= 1
                        self._said |= {report.id for report in due}
        except Exception as error:  # noqa: BLE001 - neither the counts nor the program's end may fail for this line
            interruptions.pass_on(error)
            log.info("no line about eager graphs is shown: %s", error)


def _text_of_measured(graphs: Sequence[GraphReport]) -> str:
    """About graphs whose compiled code served calls of this process."""
    times = graphs[0].message.partition(": ")[2] if len(graphs) == 1 else ""
    return f"{format_count(len(graphs), 'graph')} went back to eager: compiled code was slower" + (
        f" ({times})" if times else ""
    )


def _text_of_recorded(graphs: Sequence[GraphReport]) -> str:
    """About graphs whose failure record says that an earlier process found compiled code slower."""
    stay = format_count(len(graphs), "graph stays", "graphs stay")
    return f"{stay} eager ({SLOWER_THAN_EAGER}); `precompiled explain` shows the times"
