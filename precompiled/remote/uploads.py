"""Puts the objects that peers reported into the remote, and ends the leases of their keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from precompiled.remote import lease, lists
from precompiled.remote.claims import Claims
from precompiled.remote.opened_remote import OpenedRemote
from precompiled.remote.puts import Puts, QueuedPut


class Uploads:
    """The puts of a helper. Thread-safe. ``wanted``: whether this host puts anything."""

    def __init__(self, remote: OpenedRemote, claims: Claims, changed: Callable[[], None], *, wanted: bool) -> None:
        self._remote, self._claims, self._wanted = remote, claims, wanted
        self._queue = Puts(
            self._put, failed=remote.failed, given_up=remote.gave_up, changed=changed, rests=remote.rests
        )

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    def add(self, what: dict[str, Any]) -> bool:
        """Queue a put. Returns whether it will be tried."""
        return self._wanted and self._queue.add(what)

    def flush(self) -> None:
        """Try each queued put once."""
        self._remote.done.wait()
        self._queue.flush()

    def leave(self, timeout_s: float) -> None:
        self._queue.leave(timeout_s)

    def run(self) -> None:
        """Put objects, once the remote is open, until ``leave``."""
        self._remote.done.wait()
        self._queue.run()

    def _put(self, item: QueuedPut) -> None:
        there, what = self._remote.transfer, item.what
        if there is None:
            return  # the remote is unusable; the state file gives the reason
        if what["do"] == "used":
            lists.note(there, what["program"], what["keys"], what["fresh"], what["entries"])
            return
        if what["do"] == "put-entry":
            there.put_entry(what["function"], what["name"])
            return
        try:
            for artifact in there.store.lookup(what["key"]):
                is_it = artifact.slot == what["slot"] and there.store.is_own(artifact)
                # If an earlier try has put the object, it is in the remote already.
                if is_it and (there.put_artifact(artifact) or item.tries):
                    lease.remove_given_up(there, what["key"])
        finally:
            if not item.tries:  # a second try has no lease: another worker may hold the key's lease by then
                self._claims.ended(what["key"], "put")
