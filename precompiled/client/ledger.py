"""What this process knows of its graphs: one GraphReport each, and the counts that are told to the daemon."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from precompiled.client.swap import Event, State, Swap
from precompiled.core.spans import Span, ended

MAX_SPANS = 32  # of a graph: a loop over ever new sizes loads ever new variants


@dataclass
class GraphReport:
    """One captured graph.

    ``state``: "eager", "pending", "compiled", "failed" or "bypassed". ``source``: how it came to run compiled: "hit"
    (the artifact was there), "swap" (it appeared later), "package" (nothing was traced either), "inline" (compiled in
    this process), "error" (not at all: with ``require`` its call raised), or None.
    ``reason``: the stable code of why it is bypassed or failed, or why its calls wait ("stand-in-raised"), "" for
    others; ``message``: the same in a sentence.
    ``spans``: what this process did for it, and when: "lookup", "submit", "wait", "load", "compile in process".
    Times in seconds.
    """

    id: str
    name: str
    key: str = ""
    state: str = State.EAGER.value
    source: str | None = None
    reason: str = ""
    message: str = ""
    lookup_s: float = 0.0  # capture, key and lookup: what the program waited for us
    load_s: float = 0.0
    swapped_after_s: float = 0.0  # from the miss to the swap
    compile_s: float = 0.0  # what the compile of its artifacts took, where it was done
    saved_s: float = 0.0  # of these the seconds in which this process did not wait for them
    calls_eager: int = 0
    calls_compiled: int = 0
    spans: list[Span] = field(default_factory=list)


class Ledger:
    """All graphs of this process, and the counts. Thread-safe."""

    def __init__(self, on_count: Callable[[], None] = lambda: None) -> None:
        self._lock = threading.Lock()
        self._on_count = on_count
        self._graphs: list[GraphCalls] = []
        self._counts: dict[str, Any] = {}  # since the last Tally: fields of it (wire.py)

    def after_fork(self) -> None:
        """In a fork's child: a lock that a thread of the parent may hold, and counts that are the parent's to tell."""
        self._lock = threading.Lock()
        self._counts = {}

    def add(self, graph: GraphCalls) -> None:
        with self._lock:
            self._graphs.append(graph)

    def forget(self, graph: GraphCalls) -> None:
        """It has turned out to be none: Dynamo traces again."""
        with self._lock:
            self._graphs.remove(graph)

    def reports(self, start: int = 0) -> list[GraphReport]:
        with self._lock:
            return [graph.snapshot() for graph in self._graphs[start:]]

    def count(self, **changes: float) -> None:
        """Add to numbers of wire.Tally."""
        with self._lock:
            for name, amount in changes.items():
                self._counts[name] = self._counts.get(name, 0) + amount
        self._on_count()

    def count_reason(self, kind: str, code: str) -> None:
        """Count a reason; ``kind``: "fallbacks", "bypassed", "not_served" or "not_kept"."""
        with self._lock:
            table = self._counts.setdefault(kind, {})
            table[code] = table.get(code, 0) + 1
        self._on_count()

    def take_counts(self) -> dict[str, Any]:
        """What is to be told to the daemon, once: fields of wire.Tally, without those that are nothing."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return {name: amount for name, amount in counts.items() if amount}


class GraphCalls:
    """A graph's report, with its calls, which the hot path counts without a lock."""

    def __init__(self, report: GraphReport) -> None:
        self.report = report
        self.swap = Swap()
        self.calls = 0
        self.calls_before_flip: int | None = None
        self.calls_unserved = 0  # after the flip: of sizes that no variant serves yet, or in a capture

    def spent(self, what: str, seconds: float) -> None:
        """This thread did that for the graph, until now."""
        if len(self.report.spans) < MAX_SPANS:
            self.report.spans.append(ended(what, seconds))

    def loaded(
        self, source: str, load_s: float, compile_s: float, swap: Swap | None = None, waited_s: float = 0.0
    ) -> float:
        """An artifact serves this graph; returns the seconds that it saved. ``source``: as in GraphReport. ``load_s``,
        ``compile_s``: seconds that the load took, and the worker's compile. ``waited_s``: in which the program stood
        still for the artifact. ``swap``: that of a further variant, else the graph's own.
        """
        saved_s = max(0.0, compile_s - waited_s)
        report = self.report
        report.load_s = load_s
        self.spent("load", load_s)
        report.source = report.source or source  # variants add to what the first one began
        report.compile_s += compile_s
        report.saved_s += saved_s
        if source == "swap":  # the calls before the flip are counted where it is flipped
            (swap or self.swap).on(Event.LOADED)
        else:
            self.swap.on(Event.HIT)
            self.calls_before_flip = 0
        return saved_s

    def bypassed(self, code: str, message: str) -> None:
        """It is compiled in this process, before its first call."""
        self.report.reason, self.report.message = code, message
        self.swap.on(Event.BYPASS)
        self.calls_before_flip = 0

    def left_eager(self) -> None:
        """It was to be compiled in this process, which cannot: it runs eager for good."""
        self.swap = Swap()
        self.swap.on(Event.FAILED)
        self.calls_before_flip = None

    def refused(self, code: str, message: str) -> None:
        """With ``require``: it is not run."""
        self.report.reason, self.report.message, self.report.source = code, message, "error"
        self.swap.on(Event.FAILED)

    def snapshot(self) -> GraphReport:
        """A copy of the report as of now."""
        values = {**vars(self.report), "state": self.swap.state.value, "spans": list(self.report.spans)}
        calls = self.calls
        before = self.calls_before_flip
        eager = calls if before is None else before + self.calls_unserved
        return GraphReport(**{**values, "calls_eager": eager, "calls_compiled": calls - eager})
