"""Holds the state of this process that outlives a call.

The module that creates an object stores the object in its slot. Readers handle an empty slot. Each
object has a protocol in this file. So this file imports none of the modules that create the objects, and each of these
modules may import this file.
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

    def wait(self, timeout_s: float | None, *, blocks_program: bool = True) -> bool:
        """Wait until no graph is pending. Returns false after ``timeout_s`` seconds."""

    def reports(self, start: int = 0) -> list[GraphReport]:
        """The reports of the graphs, in order, from index ``start`` on."""

    def tell_counts(self) -> None:
        """Send this process's counts to the daemon, best effort."""

    def flush(self, timeout_s: float) -> bool | None:
        """Wait until the daemon has accepted every submit. Returns None if no daemon runs."""


class PackagesProtocol(Protocol):
    """packages/automatic.Automatic holds the packages of this process."""

    reports: list[Any]  # FunctionReport
    used: set[tuple[str, str]]  # used or recorded entries, as (function, file name)

    def name_graph(self, function: Callable[..., Any], report: GraphReport, program: Any, held: list[Any]) -> None:
        """Attach a graph's key and description to ``function``, Dynamo's callable for the graph.

        ``held``: the tensors that the callable itself adds to its arguments.
        """

    def files(self) -> dict[str, str]:
        """Map the path of each of the program's own source files to the digest of its text."""

    def modules(self) -> dict[str, str]:
        """Map installed top-level modules to digests, if the program has loaded them (packages/source_files.py)."""

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until all recorded packages are published. Returns false after a timeout."""

    def switch_off(self) -> None:
        """Restore Dynamo's own methods."""


class KernelsProtocol(Protocol):
    """triton_kernels.KernelLookup serves the Triton kernels of this process."""

    used: set[str]  # the keys of the kernels that this process found in the store or published


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
        """Handle the daemon's reply to a submit."""


class ProcessState:
    """The objects of this process. ``given``: settings from Python code, such as ``enable(mode=...)``. These settings
    have the same precedence as command-line flags.
    """

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        # When the import of torch began and ended, in seconds since the epoch; 0 if unknown.
        self.torch_imported = (0.0, 0.0)
        self.session: SessionProtocol | None = None
        self.packages: PackagesProtocol | None = None
        self.failed_traces: list[Any] = []  # FunctionReport; only while ``packages`` is None
        self.kernels: KernelsProtocol | None = None
        self.recorder: RecorderProtocol | None = None
        self.ahead: AheadProtocol | None = None

    def settings(self) -> Settings:
        """Read the settings of this process. Raises ConfigError."""
        from precompiled.core import config

        return config.load(self.given)


PROCESS = ProcessState()
