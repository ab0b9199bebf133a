"""Defines the data of an awaited graph, which runs eager until its artifact arrives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from precompiled.client.dispatch import Dispatch
from precompiled.client.ledger import GraphCalls
from precompiled.client.swap import Swap
from precompiled.graph.capture import SerializedGraph

if TYPE_CHECKING:
    from precompiled.client.connection import DaemonConnection
    from precompiled.client.graph_outcomes import GraphOutcomes
    from precompiled.client.ledger import Ledger
    from precompiled.core.config import Settings
    from precompiled.store.artifacts import Artifact, Store


class SessionView(Protocol):
    """The part of session.Session that pending.py, swapping.py and fallback.py use."""

    settings: Settings
    store: Store
    connection: DaemonConnection
    ledger: Ledger
    outcomes: GraphOutcomes
    stays_eager: bool

    def loaded_from(self, artifact: Artifact) -> None: ...
    def withdraw(self, artifact: Artifact) -> None: ...
    def tell_counts(self) -> None: ...
    def tell_used(self) -> None: ...
    def refuse(self, calls: GraphCalls, code: str, message: str) -> None: ...
    @property
    def requires(self) -> bool: ...


class PieceView(Protocol):
    """The part of pieces.Piece that pending.py, swapping.py and fallback.py use."""

    def serve(self, function: Callable[..., Any]) -> None: ...
    def fail(self, code: str, message: str) -> None: ...


class NotNow(Exception):
    """A graph cannot be compiled at this call. The call runs eager, and the next call retries the compile."""


@dataclass(eq=False)
class Awaited:
    """A graph that runs eager until its artifact arrives."""

    calls: GraphCalls
    program: SerializedGraph
    hints: list[int]  # the sizes that the awaited variant must serve
    swap: Swap  # the state of the graph, or of a further variant
    submit: Callable[[Awaited], None]
    dispatch: Dispatch
    # Compiles the graph in process. Returns the compiled callable and the guards on the graph's sizes.
    compile_inline: Callable[[], tuple[Callable[..., Any], str] | None]
    id: str
    since: float = field(default_factory=time.monotonic)
    submitted: float = field(default_factory=time.time)  # seconds since the epoch, as in failure records
    done: threading.Event = field(default_factory=threading.Event)
    answered: bool = False  # the daemon has reported that the key is published
    compiled_here: bool = False  # the graph was compiled in process instead
    compiling: threading.RLock = field(default_factory=threading.RLock)  # held during the compile in process
    waited_for: bool = False  # a call of the program waits for the artifact
    threads: int = 0  # OpenMP threads of its eager calls on the CPU
    after: threading.Event | None = None  # submit the graph once this event is set
    background: bool = False  # the graph already runs compiled, in pieces, so no call waits for the artifact
    piece: PieceView | None = None  # set if the awaited graph is a piece of a graph that is awaited as well
    # Returns the captured graph, to store in the run record; None for a piece or a further variant, and once stored.
    to_record: Callable[[], bytes] | None = None

    @property
    def key(self) -> str:
        return self.calls.report.key
