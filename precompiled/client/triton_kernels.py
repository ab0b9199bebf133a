"""Serves the Triton kernels that this process launches outside of graphs (the setting ``triton``).

The lookup of a kernel searches the store and its bases first, then the objects that the remote's helper fetches ahead,
then the remote. During the lookup, the process holds the turn to compile the kernel (store/kernel_turns.py). If
anything fails, Triton compiles the kernel in process, as without precompiled.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from precompiled import parts
from precompiled.client.kernels_ahead import KernelsAhead
from precompiled.client.process import PROCESS
from precompiled.core import interruptions
from precompiled.core.errors import STORE_UNWRITABLE, StoreError, code_of
from precompiled.store import kernel_turns
from precompiled.store.kernel_turns import KernelTurn
from precompiled.store.triton_kernels import TritonKernels, seal

if TYPE_CHECKING:
    from precompiled.core.config import Settings

log = logging.getLogger("precompiled.triton")

_CACHE = "triton.runtime.cache"
SLOW_S = 1.0


def install(settings: Settings) -> None:
    """Serve Triton's kernels, now or when the program imports Triton. Idempotent."""
    if PROCESS.kernels is not None:
        return
    PROCESS.kernels = lookup = KernelLookup(settings)
    atexit.register(lookup.at_exit)
    if _has_loaded(_CACHE):
        lookup.begin()
    else:
        sys.meta_path.insert(0, _TritonFinder())


def remove() -> None:
    """Restore Triton's own cache. Idempotent."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _TritonFinder)]
    if isinstance(PROCESS.kernels, KernelLookup) and PROCESS.kernels.has_begun:
        from precompiled.torch_internals.client import triton_cache

        triton_cache.remove()
    PROCESS.kernels = None


class _TritonFinder:
    """A meta-path finder that finds no module, but notices imports. After the module of its cache, Triton imports
    further modules before its first compile. At such an import, the finder starts the lookup and removes itself.
    """

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.startswith("triton.") and _has_loaded(_CACHE) and self in sys.meta_path:
            sys.meta_path.remove(self)
            if isinstance(PROCESS.kernels, KernelLookup):
                PROCESS.kernels.begin()


def _has_loaded(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)


class KernelLookup:
    """Looks up and publishes the Triton kernels of this process. Thread-safe.

    Implements KernelLookupProtocol (torch_internals/client/triton_cache.py).
    """

    is_worker = False

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._store = TritonKernels(settings.cache_dir, settings.base, self._on_base_problem)
        self.with_texts = settings.triton == "texts"
        self.used: set[str] = set()  # the kernels that this process found in the store or published
        self.has_begun = False
        # The seconds for which this process may still wait for kernels that the remote lacks.
        self._left_s = settings.remote_ahead_s if settings.remote else 0.0
        self._puts = bool(settings.remote)
        self._ahead: KernelsAhead | None = None
        self._began: dict[str, float] = {}  # maps the key of a kernel that is being compiled to the time of its begin
        self._turns: weakref.WeakValueDictionary[str, KernelTurn] = weakref.WeakValueDictionary()

    def begin(self) -> None:
        """Replace Triton's cache manager, unless the program has its own. Raises nothing."""
        try:
            from precompiled.torch_internals.client import triton_cache

            self.has_begun = triton_cache.install(self)
            if self.has_begun:
                if PROCESS.recorder is None:  # watch mode captures graphs only
                    self._ahead = KernelsAhead(self._settings)
                    self._ahead.begin()
            else:
                log.info("the program has a cache manager of its own for Triton, which stays")
        except Exception as error:  # noqa: BLE001 - the program's import of Triton must not fail
            interruptions.pass_on(error)
            self.failed(error)

    def find(self, key: str, *, in_turn: bool) -> tuple[dict[str, bytes] | None, KernelTurn | None]:
        if self._ahead is not None:
            self._ahead.first_use()
        files = self._read(key)
        if files is None and PROCESS.ahead is not None and PROCESS.ahead.under_way and PROCESS.ahead.wait():
            files = self._read(key)
        turn = None
        if files is None and in_turn and (turn := self._take_turn(key)) is None:
            files = self._read(key)  # the process that had the turn may have compiled the kernel
        if files is None and (turn is not None or not in_turn) and self._is_fetched(key, compiles=in_turn):
            files = self._read(key)
        if files is not None and turn is not None:
            turn.end()
            turn = None
        if files is None:
            self._began[key] = time.monotonic()
        return files, turn

    def publish(self, key: str, name: str, files: dict[str, bytes]) -> None:
        try:
            self._store.publish(key, seal(key, name, files))
        except StoreError as error:
            self.failed(error)
            return
        log.info("the Triton kernel %s was compiled, and published", name)
        self.used.add(key)
        self._put(key)

    def note(self, key: str, name: str, describe: Callable[[], dict[str, Any]]) -> None:
        if self._ahead is not None:
            began = self._began.pop(key, None)
            self._ahead.note(key, name, describe, 0.0 if began is None else time.monotonic() - began)

    def failed(self, error: Exception) -> None:
        code = code_of(error, STORE_UNWRITABLE if isinstance(error, OSError) else "internal-error")
        try:
            from precompiled.client import session

            session.current().ledger.count_reason("fallbacks", code)
            session.current().outcomes.warn_once(code, f"Triton compiles kernels in this process ({code}): {error}")
        except Exception as problem:  # noqa: BLE001 - an invalid setting, for example
            interruptions.pass_on(problem)
            log.warning("Triton compiles kernels in this process (%s): %s (not counted: %s)", code, error, problem)

    def after_fork(self) -> None:
        if self._ahead is not None:
            self._ahead.after_fork()

    def at_exit(self) -> None:
        """Report the used kernels to the remote's helper. If a session exists, the session does this instead."""
        if PROCESS.session is None and PROCESS.ahead is not None:
            PROCESS.ahead.used((), (), (), self.used)

    # ------------------------------------------------------------------ inside

    def _read(self, key: str) -> dict[str, bytes] | None:
        try:
            files = self._store.read(key)
        except StoreError as error:
            self.failed(error)
            return None
        if files is not None:
            self.used.add(key)
        return files

    def _take_turn(self, key: str) -> KernelTurn | None:
        """Wait until no other process compiles the kernel. Returns None if this process had to wait, or if there can be
        no turns.
        """
        held = self._turns.get(key)
        if held is not None and held.thread == threading.get_ident():
            held.end()  # a compile in this thread has failed, and its exception keeps the turn alive
        try:
            self._store.prepare()
            limit_s = math.inf if self._ahead is None else self._ahead.patience_s(key)
            turn = kernel_turns.take(self._store.tmp, key, is_worker=self.is_worker, limit_s=limit_s)
        except (OSError, StoreError) as error:
            self.failed(error)
            return None
        if turn is not None:
            self._turns[key] = turn
        return turn

    def _is_fetched(self, key: str, *, compiles: bool) -> bool:
        """Let the helper fetch a kernel from the remote, if there is time left."""
        remote = parts.REMOTE.get()
        if self._left_s <= 0 or remote is None:
            return False
        began = time.monotonic()
        found = remote.fetch_kernel(self._settings.cache_dir, key, self._left_s, compiles=compiles)
        if not found:
            self._left_s -= time.monotonic() - began
        return found

    def _put(self, key: str) -> None:
        """Request the upload of a kernel. If an earlier request took long, the helper hangs, so request nothing."""
        if not self._puts or (remote := parts.REMOTE.get()) is None:
            return
        began = time.monotonic()
        remote.put_kernel(self._settings.cache_dir, key)
        self._puts = time.monotonic() - began < SLOW_S

    def _on_base_problem(self, reason: str) -> None:
        from precompiled.client import session

        session.current().outcomes.base_left_out(reason)


def _after_fork_in_child() -> None:
    if isinstance(PROCESS.kernels, KernelLookup):
        PROCESS.kernels.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
