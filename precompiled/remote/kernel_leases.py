"""Answers processes that lack a Triton kernel: fetches it, waits for the host that compiles it, or takes its lease.

A process takes the kernel's turn (store/kernel_turns.py), asks the helper, and compiles after the answer. The helper
holds the lease until the turn has ended and the helper has tried to put the kernel into the remote. So the lease does
not depend on a connection to the process: forked children of the process would keep a connection open.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

from precompiled.core.errors import StoreError
from precompiled.remote.envelope import KERNEL
from precompiled.remote.errors import RemoteError
from precompiled.remote.lease import Claim, Found
from precompiled.remote.opened_remote import OpenedRemote
from precompiled.remote.puts import Puts
from precompiled.store.kernel_turns import STALL_S, TurnState, find_state
from precompiled.store.triton_kernels import TritonKernels

TTL_S = 3.0  # shorter than that of a graph, because a process waits, and a kernel compiles within seconds
LOOK_S = (0.1, 1.0)  # seconds between two checks of another host's lease: the first pause, and the longest
MAX_THEIRS_S = STALL_S  # the longest wait for other hosts, in seconds
TURN_LOOK_S = 0.05  # seconds between two checks of this host's turn


class KernelLeases:
    """A helper's leases on Triton kernels. Thread-safe. ``root``: the store's directory. ``changed`` is called after
    each request.
    """

    def __init__(
        self,
        remote: OpenedRemote,
        puts: Puts,
        root: Path,
        wait_s: float,
        changed: Callable[[], None],
        *,
        may_hold: bool,
    ) -> None:
        self._remote, self._puts, self._root, self._wait_s, self._changed = remote, puts, root, wait_s, changed
        self._may_hold = may_hold

    def answers(self, key: str, *, compiles: bool) -> Iterator[dict[str, object]]:
        """Yield the answers to a process that lacks a kernel (helper_link.py).

        After the last answer, if this host has taken the lease, the iterator renews the lease until the process has
        compiled the kernel.
        """
        claim, found = None, Found.ALONE
        try:
            if self._remote.done.wait(self._wait_s) and (there := self._remote.transfer) is not None:
                if compiles:
                    claim = Claim(there, key, kind=KERNEL, ttl_s=TTL_S, may_hold=self._may_hold)
                    found = yield from self._wait(claim)
                elif there.fetch_kernel(key):
                    found = Found.HERE
        except (RemoteError, StoreError) as error:
            self._remote.failed(error)
        state = TurnState.LOST  # unless the answer reaches the process
        try:
            yield {"found": found is Found.HERE}
            if found is Found.MINE and claim is not None:
                state = self._hold(claim, key)
        except (RemoteError, OSError) as error:
            self._remote.failed(error)
        finally:
            if claim is not None:
                self._end(claim, failed=state is TurnState.ENDED and not TritonKernels(self._root).has(key))
            self._changed()

    def _wait(self, claim: Claim) -> Generator[dict[str, object], None, Found]:
        """Wait until no other host holds the lease, at most for MAX_THEIRS_S. Raises RemoteError, StoreError."""
        pause, until = LOOK_S[0], time.monotonic() + MAX_THEIRS_S
        while (found := claim.look()) is Found.THEIRS:
            if time.monotonic() > until:
                return Found.ALONE
            yield {}
            time.sleep(pause * random.uniform(0.7, 1.0))
            pause = min(2 * pause, LOOK_S[1])
        return found

    def _hold(self, claim: Claim, key: str) -> TurnState:
        """Renew the lease until the process has compiled the kernel and the helper has tried to put the kernel.

        Returns the turn's state. Raises RemoteError, OSError.
        """
        due = time.monotonic() + claim.beat_s
        # The process requests the put before its turn ends.
        while (state := find_state(self._root / "tmp", key)) is TurnState.HELD or self._puts.awaits_kernel(key):
            time.sleep(TURN_LOOK_S)
            if time.monotonic() >= due:
                if not claim.beat():
                    break
                due = time.monotonic() + claim.beat_s
        return state

    def _end(self, claim: Claim, *, failed: bool) -> None:
        """End the lease, if this host holds it. ``failed``: the kernel cannot be compiled, so other hosts must not wait
        for it.
        """
        try:
            claim.give_up() if failed else claim.end()
        except RemoteError as error:  # the lease expires for other hosts
            self._remote.failed(error)
