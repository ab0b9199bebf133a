"""Keeps the helper's claims. For each key that a worker requests, a thread searches, waits, or holds the lease.

A waiting worker occupies a slot. So a worker gets a reply within ANSWER_S, even if the remote does not answer. The
reply is one of these: the worker must compile, the artifact has arrived, or the worker must repeat the request later.
In the last case, the job is parked until the worker repeats the request (service/scheduler.py).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from precompiled.core.errors import StoreError
from precompiled.remote import helper_link
from precompiled.remote.errors import RemoteError
from precompiled.remote.lease import TTL_S, Claim, Found
from precompiled.remote.transfer import Transfer

ANSWER_S = 0.5
# Seconds until a worker repeats its request while another host compiles. An artifact that arrives is published even
# without a repeated request.
AGAIN_THEIRS_S = 5.0
# seconds to wait for the remote's first reply about a key: on a busy machine, a listing takes seconds
PATIENCE_S = 10.0
LOOK_S = (1.0, 10.0)  # seconds between two checks of another host's lease: the first pause, and the longest
MAX_THEIRS_S = 600.0  # the longest wait for other hosts, in seconds; after it, this host compiles without a lease
UNCLAIMED_S = 15.0  # a lease that no worker uses is given back after this many seconds
KEPT_S = 60.0  # seconds for which a reply is kept for a worker that repeats its request


class _Case:
    """The state of one key. ``found``: None until the remote has answered."""

    def __init__(self) -> None:
        self.found: Found | None = None
        self.began = self.since = self.asked = time.monotonic()
        self.taken = False  # a worker compiles the key
        self.over = threading.Event()  # set when the compile has ended, or when no worker needs the reply any longer
        self.how = ""  # "put", "failed", or "" if nothing was compiled


class Claims:
    """The claims of a helper, by key. Thread-safe. ``failed`` is called with each error."""

    def __init__(self, failed: Callable[[Exception], None], *, may_hold: bool, ttl_s: float = TTL_S) -> None:
        self._failed, self._may_hold, self._ttl_s = failed, may_hold, ttl_s
        self._cases: dict[str, _Case] = {}
        self._changed = threading.Condition()

    def ask(self, there: Transfer, key: str) -> dict[str, object]:
        """Return a worker's next step for a job of this key: {"found"}, {"again_s"}, or {"compile"}. After {"compile"},
        the caller must call ``ended``.
        """
        with self._changed:
            self._forget()
            case = self._cases.get(key)
            if case is None:
                case = self._cases[key] = _Case()
                threading.Thread(target=self._work, args=(case, there, key), daemon=True).start()
            case.asked = time.monotonic()
            self._changed.wait_for(lambda: case.found is not None, ANSWER_S)
            match case.found:
                case None if time.monotonic() - case.began < PATIENCE_S:
                    return {"again_s": helper_link.AGAIN_S}
                case Found.THEIRS:
                    return {"again_s": AGAIN_THEIRS_S}
                case Found.MINE if case.taken:
                    return {"again_s": AGAIN_THEIRS_S}  # another worker of this host is compiling the key
                case Found.MINE:
                    case.taken = True
                    return {"compile": True}
            self._cases.pop(key, None)
            case.over.set()
            return {"found": True} if case.found is Found.HERE else {"compile": True}

    def ended(self, key: str, how: str) -> None:
        """Report the end of a compile: "put" (its artifact is in the remote), "failed", or "" (neither)."""
        with self._changed:
            case = self._cases.get(key)
            if case is not None and case.found is Found.MINE:
                case.how = how
                case.over.set()

    @property
    def held(self) -> int:
        """The number of leases under which workers of this host compile now."""
        with self._changed:
            return sum(case.taken for case in self._cases.values())

    def settle(self, timeout_s: float) -> None:
        """Wait until the leases whose compiles have ended are removed."""
        with self._changed:
            self._changed.wait_for(
                lambda: not any(one.found is Found.MINE and one.over.is_set() for one in self._cases.values()),
                max(0.0, timeout_s),
            )

    def _forget(self) -> None:
        now = time.monotonic()
        for key in [key for key, case in self._cases.items() if _is_final(case) and now - case.since > KEPT_S]:
            del self._cases[key]

    # ------------------------------------------------ a case's thread

    def _work(self, case: _Case, there: Transfer, key: str) -> None:
        claim = Claim(there, key, ttl_s=self._ttl_s, may_hold=self._may_hold)
        try:
            self._wait(case, claim)
            if case.found is Found.MINE:
                self._hold(case, claim)
        except Exception as error:  # noqa: BLE001 - the worker continues without the remote
            self._failed(error)
            self._is(case, Found.ALONE)
        finally:
            with self._changed:
                if not _is_final(case) and self._cases.get(key) is case:
                    del self._cases[key]
                    self._changed.notify_all()

    def _wait(self, case: _Case, claim: Claim) -> None:
        pause, answered = LOOK_S[0], time.monotonic()
        while not case.over.is_set():
            try:
                found = claim.look()
                answered = time.monotonic()
            except (RemoteError, StoreError) as error:
                # The remote does not answer. If another host was compiling at the last look, assume that it still
                # compiles. Otherwise compile.
                if case.found is not Found.THEIRS or time.monotonic() - answered > claim.ttl_s:
                    raise
                self._failed(error)
                found = Found.THEIRS
            if found is Found.THEIRS and time.monotonic() - case.began > MAX_THEIRS_S:
                found = Found.ALONE
            self._is(case, found)
            if found is not Found.THEIRS:
                return
            case.over.wait(min(pause, claim.beat_s) * random.uniform(0.7, 1.0))
            pause = min(2 * pause, LOOK_S[1])

    def _hold(self, case: _Case, claim: Claim) -> None:
        try:
            while not case.over.wait(claim.beat_s):
                with self._changed:
                    if not case.taken and time.monotonic() - case.since > UNCLAIMED_S:
                        break
                try:
                    if not claim.beat():
                        return
                except RemoteError as error:
                    # The renewal failed. If the remote does not recover, the lease expires for other hosts.
                    self._failed(error)
        finally:
            with self._changed:
                case.over.set()
            if case.how == "failed":
                claim.give_up()
            else:
                claim.end()

    def _is(self, case: _Case, found: Found) -> None:
        with self._changed:
            case.found, case.since = found, time.monotonic()
            self._changed.notify_all()


def _is_final(case: _Case) -> bool:
    return case.found in (Found.HERE, Found.ALONE)
