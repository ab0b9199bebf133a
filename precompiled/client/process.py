"""Holds the state of this process that outlives a call.

Each slot is filled by the module that makes its object. Readers handle an empty slot: ``precompiled.report()`` uses
the session if there is one, and otherwise imports nothing. A protocol describes what each slot holds, so this file
imports none of the modules that fill it, and all of them may import this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from precompiled.client.ledger import GraphReport
    from precompiled.core.config import Settings
    from precompiled.parts import AheadProtocol


class SessionProtocol(Protocol):
    """session.Session holds the graphs of this process."""

    settings: Settings

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until no graph is pending. Returns false after ``timeout_s`` seconds."""

    def reports(self, start: int = 0) -> list[GraphReport]:
        """The report of each graph, in order, from index ``start`` on."""

    def tell_counts(self) -> None:
        """Send this process's counts to the daemon, best effort."""

    def flush(self, timeout_s: float) -> bool | None:
        """Wait until the daemon has accepted every submit. None if there is no daemon."""


class PackagesProtocol(Protocol):
    """packages/automatic.Automatic holds the packages of this process."""

    reports: list[Any]  # FunctionReport
    used: set[tuple[str, str]]  # entries that were used or recorded, as (function, file name)

    def name_graph(self, function: Callable[..., Any], report: GraphReport, program: Any, held: list[Any]) -> None:
        """Attach a graph's key and description to ``function``, Dynamo's callable for the graph.

        ``held``: the tensors that the callable supplies itself.
        """

    def files(self) -> dict[str, str]:
        """Map the path of each of the program's own source files to the digest of its text."""

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until all recorded packages are published. Returns false if the time ran out."""

    def switch_off(self) -> None:
        """Restore Dynamo's own methods."""


class RecorderProtocol(Protocol):
    """watch/recorder.Recorder reports to the watcher, if watch mode started this process to capture graphs
    (docs/guides/watch.md).
    """

    def graph(
        self,
        report: GraphReport,
        state: str,
        *,
        files: Iterable[str] = (),
        slots: Iterable[int] = (),
        dynamic: bool = False,
    ) -> None:
        """Report a captured graph to the watcher."""

    def on_reply(self, reply: Any) -> None:
        """Take the daemon's reply to a submit."""


class ProcessState:
    """Slots for the objects of this process. ``given``: settings given in Python, as by ``enable(mode=...)``; they rank
    with command-line flags.
    """

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        # When the import of torch began and ended, in seconds since the epoch. 0 if that was not observed.
        self.torch_imported = (0.0, 0.0)
        self.session: SessionProtocol | None = None
        self.packages: PackagesProtocol | None = None
        self.recorder: RecorderProtocol | None = None
        self.ahead: AheadProtocol | None = None

    def settings(self) -> Settings:
        """Read the settings of this process. Raises ConfigError."""
        from precompiled.core import config

        return config.load(self.given)


PROCESS = ProcessState()
