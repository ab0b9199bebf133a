"""What this process holds of ours: the one place for state that outlives a call.

Each slot is filled by who makes what it holds, and read by who can do without: ``precompiled.report()`` asks a session
that is there, and imports nothing where none was made. What a slot holds is said by a protocol, so this file knows
none of the modules that fill it, and all of them may import it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from precompiled.client.ledger import GraphReport
    from precompiled.core.config import Settings


class Session(Protocol):
    """session.Session: the graphs of this process."""

    settings: Settings

    def wait(self, timeout_s: float | None) -> bool:
        """Until no graph is pending; false after ``timeout_s`` seconds."""

    def reports(self, start: int = 0) -> list[GraphReport]:
        """One for each graph, in order; without the first ``start``."""

    def tell_counts(self) -> None:
        """Send this process's counts to the daemon, best effort."""

    def flush(self, timeout_s: float) -> bool | None:
        """Until the daemon has taken all that was submitted; None where there is no daemon."""


class Packages(Protocol):
    """packages/automatic.Automatic: the packages of this process."""

    reports: list[Any]  # FunctionReport
    used: set[tuple[str, str]]  # entries that were used or recorded: function, file name

    def name_graph(self, function: Callable[..., Any], report: GraphReport, program: Any, held: list[Any]) -> None:
        """Say on what Dynamo gets for a graph which artifact it runs with, and which tensors it gives that itself."""

    def files(self) -> dict[str, str]:
        """The program's own files: path -> digest of the text."""

    def flush(self, timeout_s: float | None = None) -> bool:
        """Until what was recorded is published; false when the time was not enough."""

    def switch_off(self) -> None:
        """Give Dynamo its own methods back."""


class Ahead(Protocol):
    """client/ahead.Ahead: what the remote's helper brings for this process."""

    @property
    def under_way(self) -> bool:
        """Whether something may still come."""

    def wait(self) -> bool:
        """Whether something has come, within the time that this process may wait for it in all."""

    def used(self, keys: Collection[str], fresh: Collection[str], entries: Collection[tuple[str, str]]) -> None:
        """Say what this process has used: artifacts, those that were not there at first, and entries of packages."""


class Recorder(Protocol):
    """client/recorder.Recorder: this process is a watch's capture (docs/guides/watch.md)."""

    def graph(
        self, report: GraphReport, state: str, *, files: Iterable[str] = (), slots: Iterable[int] = (),
        dynamic: bool = False,
    ) -> None:  # fmt: skip
        """A graph was captured."""

    def on_reply(self, reply: Any) -> None:
        """What the daemon says of a submitted graph."""


class Process:
    """``given``: settings given in Python (``enable(mode=...)``), which count like flags of a command line."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        # When its import began and ended, in seconds since the epoch; 0 where that was not seen.
        self.torch_imported = (0.0, 0.0)
        self.session: Session | None = None
        self.packages: Packages | None = None
        self.recorder: Recorder | None = None
        self.ahead: Ahead | None = None

    def settings(self) -> Settings:
        """The settings of this process, read anew. Raises ConfigError."""
        from precompiled.core import config

        return config.load(self.given)


PROCESS = Process()
