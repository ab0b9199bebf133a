"""Prints a line about the graphs that came from the store, for example::

    precompiled: 2 of 2 graphs from the cache (about 27 s saved)
    precompiled: 1 graph runs compiled in pieces from the cache

The saved time is the time that workers needed to compile these artifacts. Graphs that share an artifact count once.
With an empty cache, this process would have spent this time on compiling.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from precompiled.client.ledger import GraphReport
from precompiled.client.terminal_lines import TerminalLines
from precompiled.core import interruptions
from precompiled.core.words import format_count, human_seconds

log = logging.getLogger("precompiled.client.progress")


class HitLine:
    """Prints the line a second after the last graph, and at the program's end if there are more hits by then.

    A process with misses prints progress.py's lines instead. Thread-safe.
    """

    def __init__(self, lines: TerminalLines) -> None:
        self._lines = lines
        self._said = 0  # the hits in the last line
        self._in_pieces: set[str] = set()
        self._lock = threading.Lock()

    def began_in_pieces(self, id: str) -> None:
        """Note that the store had all pieces of the graph with this id, while the graph itself is pending."""
        with self._lock:
            self._in_pieces.add(id)

    def look(self, reports: Sequence[GraphReport], *, at_end: bool = False) -> None:
        """Print the line if it is due. Never raises."""
        hits = [report for report in reports if report.source in ("hit", "package") and report.state == "compiled"]
        try:
            with self._lock:
                in_pieces = sum(report.id in self._in_pieces for report in reports)
                number = len(hits) + in_pieces
                due = self._is_due(number, reports, at_end) and self._lines.are_shown()
                if due and self._lines.say(_text(hits, in_pieces, len(reports))):
                    self._said = number
        except Exception as error:  # noqa: BLE001 - neither the counts nor the program's end may fail for this line
            interruptions.pass_on(error)
            log.info("no line about cache hits is shown: %s", error)

    def _is_due(self, hits: int, reports: Sequence[GraphReport], at_end: bool) -> bool:
        if self._said:
            return at_end and hits > self._said
        others = (report for report in reports if report.id not in self._in_pieces)
        return hits > 0 and not any(report.state == "pending" or report.source == "swap" for report in others)


def _text(hits: Sequence[GraphReport], in_pieces: int, graphs: int) -> str:
    if not hits:
        return f"{format_count(in_pieces, 'graph runs', 'graphs run')} compiled in pieces from the cache"
    text = f"{len(hits) + in_pieces} of {format_count(graphs, 'graph')} from the cache"
    if in_pieces:
        text += f", {in_pieces} in pieces"
    # Equal layers of a model share an artifact, which is compiled once.
    saved_s = sum({report.key: report.saved_s for report in hits}.values())
    if saved_s < 0.1:
        return text
    return f"{text} (about {f'{saved_s:.0f} s' if 10 <= saved_s < 59.5 else human_seconds(saved_s)} saved)"
