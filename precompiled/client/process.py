"""Holds the state of this process that outlives a call.

Each slot is filled by the module that makes its object. Readers handle an empty slot: ``precompiled.report()`` uses
the session if there is one, and otherwise imports nothing. This file imports none of the modules that fill its
slots, not even for their types, and all of them may import this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from precompiled.core.config import Settings


class ProcessState:
    """Slots for the objects of this process. ``given``: settings given in Python, as by ``enable(mode=...)``; they rank
    with command-line flags.
    """

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        # When the import of torch began and ended, in seconds since the epoch. 0 if that was not observed.
        self.torch_imported = (0.0, 0.0)
        self.session: Any | None = None  # session.Session: the graphs of this process
        self.packages: Any | None = None  # packages/automatic.Automatic: the packages of this process
        self.recorder: Any | None = None  # watch/recorder.Recorder, in a watch's capture
        self.ahead: Any | None = None  # remote/ahead.Ahead

    def settings(self) -> Settings:
        """Read the settings of this process. Raises ConfigError."""
        from precompiled.core import config

        return config.load(self.given)


PROCESS = ProcessState()
