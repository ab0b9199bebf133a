"""Opens the helper's remote, and opens it again when this host's keys have changed. Counts and logs its errors."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from contextlib import suppress

from precompiled.core.errors import PrecompiledError
from precompiled.remote import keys, transfer, trusting
from precompiled.remote.errors import RemoteError


class OpenedRemote:
    """The remote of a helper. ``open`` sets ``transfer`` if the remote can be used, and ``problem`` if it cannot be
    used. If there is no remote, ``transfer`` and ``problem`` stay unset. At its end, ``open`` sets ``done``.
    """

    def __init__(self) -> None:
        self.transfer: transfer.Transfer | None = None
        self.problem: PrecompiledError | None = None
        self.done = threading.Event()
        self._keys = keys.stamp()

    def open(self, options: argparse.Namespace) -> None:
        """Open the remote, or record the problem. A second call opens the remote again, with the present keys."""
        try:
            if not options.remote:
                return
            trust = trusting.trust(options.unsigned)
            if self.transfer is not None:
                self.transfer.use(trust)
            else:
                self.transfer = transfer.open_transfer(
                    options.store, options.remote, options.timeout_s, trust, options.base
                )
            self.problem = None
        except PrecompiledError as error:
            self.problem, self.transfer = error, None
        finally:
            self.done.set()

    def keys_changed(self) -> bool:
        """Whether this host's keys have changed since the last call, or since the helper's start."""
        if not self.done.is_set():
            return False
        before, self._keys = self._keys, keys.stamp()
        return before != self._keys

    def failed(self, error: Exception) -> None:
        """Write an error to the log. If it is an error of the remote, also count it."""
        if isinstance(error, RemoteError) and self.transfer is not None:
            self.transfer.failed(error)
        # An error of the log (a full disk, for example) must not end this thread, which may have objects to put or hold
        # a lease.
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {type(error).__name__}: {error}\n")
            sys.stderr.flush()

    def rests(self) -> bool:
        """Whether requests to the remote must wait: the remote is not open, or it rests after errors (bucket.py)."""
        there = self.transfer
        return there is None or (there.bucket.writing.rests or there.bucket.reading.rests)

    def gave_up(self, number: int, why: str) -> None:
        """Count puts that were given up."""
        if self.transfer is not None:
            self.transfer.gave_up(number, why)
