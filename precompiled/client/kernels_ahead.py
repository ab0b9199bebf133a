"""Lets workers compile Triton kernels ahead: the kernels that the program used last, if the store lacks them.

When the program imports Triton, this file submits each listed recipe (store/recipe_lists.py) whose kernel is missing.
The jobs have idle priority, so that graphs come first. When the program uses its first kernel, this file also submits
the recipes that were listed on other GPU models, to compile them for this GPU. While a worker compiles a kernel, it
holds the kernel's turn (store/kernel_turns.py). A process that needs the kernel meanwhile waits for the worker, but not
longer than the program's last compile of the kernel took.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import sys
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from precompiled.client.connection import DaemonConnection
from precompiled.client.daemon_link import daemon_reachable
from precompiled.core import forking, interruptions
from precompiled.core.errors import KERNEL_AHEAD, STORE_UNWRITABLE, Bypass, code_of
from precompiled.store.artifact_format import digest
from precompiled.store.recipe_lists import ListedRecipe, RecipeList
from precompiled.store.triton_kernels import TritonKernels

if TYPE_CHECKING:
    from precompiled import wire
    from precompiled.core.config import Settings

log = logging.getLogger("precompiled.triton")

THREAD = "precompiled-kernels"
MARK = b"Triton kernel\n"  # begins a job's bytes, which otherwise are JSON


class KernelsAhead:
    """The listed kernels of this process's program. Thread-safe.

    This class imports only precompiled's own modules, because the program may be importing Triton or torch's compiler.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._list = RecipeList(settings.cache_dir, identity())
        self._store = TritonKernels(settings.cache_dir, settings.base)
        self._listed: dict[str, ListedRecipe] = {}  # by the kernel's key in the store
        self._jobs: dict[str, ListedRecipe] = {}  # by the id of the submit
        self._refused: set[str] = set()  # keys of kernels that have no recipe
        self._unused = True
        self._is_on = settings.mode in ("eager", "wait") and not settings.compile_without_gpu
        self._connection: DaemonConnection | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Submit the missing kernels in a thread, and wait for nothing. Raises nothing."""
        try:
            items = self._list.read()
            with self._lock:
                self._listed.update((item.key, item) for item in items)
            if items and self._is_on:
                threading.Thread(target=self._begin, args=(items,), name=THREAD, daemon=True).start()
        except Exception as error:  # noqa: BLE001 - Triton compiles the kernels in this process
            interruptions.pass_on(error)
            self._fails(error)

    def _begin(self, items: list[ListedRecipe]) -> None:
        try:
            triton = getattr(sys.modules.get("triton"), "__version__", "")
            self._submit([item for item in items if item.triton != triton or not self._store.has(item.key)])
        except Exception as error:  # noqa: BLE001 - as above
            self._fails(error)

    def _submit(self, items: list[ListedRecipe]) -> None:
        if not self._settings.starts_daemon and not daemon_reachable(self._settings):
            return
        items = [item for item in items if item.texts == (self._settings.triton == "texts")]
        if not items:
            return
        with forking.held():
            from precompiled import wire
            from precompiled.graph import environment
            from precompiled.torch_internals.user_code import kernel_recipes
        # All jobs name one interpreter, because a job for a different interpreter would start a worker that imports
        # torch again.
        modules: dict[str, str] = {}
        for item in items:
            modules.update(kernel_recipes.modules_of(item.recipe))
        interpreter = environment.interpreter_of_a_worker(modules)
        connection = self._connected()
        log.info("%d Triton kernels are compiled ahead", len(items))
        for item in items:
            job = MARK + json.dumps({"recipe": item.recipe, "texts": item.texts}).encode()
            message = wire.Submit(
                id=uuid.uuid4().hex,
                key=digest(job + item.device.encode() + item.triton.encode()),
                store=str(self._settings.cache_dir),
                environment=interpreter,
                device=item.device,
                name=f"Triton kernel {item.name}",
                base=[str(path) for path in self._settings.base],
                idle=True,
            )
            with self._lock:
                self._jobs[message.id] = item
            connection.submit(message, job, self._on_reply)

    def _connected(self) -> DaemonConnection:
        """This object's own connection to the daemon. A session's connection would require torch's compiler."""
        with self._lock:
            if self._connection is None:
                self._connection = DaemonConnection(self._settings)
                atexit.register(self._connection.close)
            return self._connection

    def _count(self, kind: str, code: str) -> None:
        """Count a reason in the daemon."""
        from precompiled import wire

        self._connected().tally(wire.Tally(os.getpid(), **{kind: {code: 1}}))  # type: ignore[arg-type]

    def _fails(self, error: Exception) -> None:
        code = code_of(error, STORE_UNWRITABLE if isinstance(error, OSError) else "internal-error")
        log.warning("Triton compiles the kernels that the store lacks in this process (%s): %s", code, error)
        self._count("fallbacks", code)

    def _on_reply(self, reply: wire.DaemonMessage) -> None:
        from precompiled import wire

        is_over = isinstance(reply, wire.Rejected) or (isinstance(reply, wire.Accepted) and reply.state == "published")
        if not is_over or not isinstance(reply, wire.Accepted | wire.Rejected):
            return
        with self._lock:
            item = self._jobs.pop(reply.id, None)
        self._connected().forget(reply.id)
        if isinstance(reply, wire.Rejected) and item is not None:
            log.info("the Triton kernel %s was not compiled ahead (%s): %s", item.name, reply.code, reply.message)
            self._count("fallbacks", reply.code)
            if reply.code == KERNEL_AHEAD:  # the program lists the kernel again if it still uses it
                self._list.remove(item)
                with self._lock:
                    self._listed.pop(item.key, None)

    def first_use(self) -> None:
        """Submit the kernels that were listed on GPUs of other models, if this is the first call. Raises nothing."""
        with self._lock:
            items, self._unused = (list(self._listed.values()) if self._unused else []), False
        if items and self._is_on:
            threading.Thread(target=self._submit_for_this_gpu, args=(items,), name=THREAD, daemon=True).start()

    def _submit_for_this_gpu(self, items: list[ListedRecipe]) -> None:
        try:
            if (here := _this_gpu()) is None:
                self._unused = True  # Triton has loaded a C module, and the program has not used the GPU yet
            else:
                model, device = here
                self._submit([replace(item, device=device, gpu=model) for item in items if item.gpu != model])
        except Exception as error:  # noqa: BLE001 - as above
            self._fails(error)

    def patience_s(self, key: str) -> float:
        """How many seconds this process may wait for a worker that compiles a kernel. This is the time of the program's
        last compile of the kernel, or the longest time in the list if the kernel is not listed.
        """
        with self._lock:
            times = {item.key: item.compile_s for item in self._listed.values()}
        return times.get(key, max(times.values(), default=0.0))

    def note(self, key: str, name: str, describe: Callable[[], dict[str, Any]], compile_s: float) -> None:
        """List a kernel that this process uses. ``describe``: returns its recipe, or raises Bypass. Raises OSError."""
        with self._lock:
            if key in self._listed or key in self._refused or not self._is_on:
                return
        try:
            recipe = describe()
        except Bypass as reason:
            log.info("workers do not compile the Triton kernel %s ahead (%s): %s", name, reason.code, reason)
            self._count("bypassed", reason.code)
            with self._lock:
                self._refused.add(key)
            return
        if (here := _this_gpu()) is not None:
            item = ListedRecipe(
                recipe,
                name,
                key,
                triton=recipe["triton"],
                texts=self._settings.triton == "texts",
                gpu=here[0],
                device=here[1],
                compile_s=compile_s,
            )
            self._list.add(item)
            with self._lock:
                self._listed[key] = item

    def after_fork(self) -> None:
        """Forget the jobs in a fork's child, because the parent's connection has them, and the parent's threads may
        have held the lock.
        """
        self._lock = threading.Lock()
        self._jobs = {}


def _this_gpu() -> tuple[str, str] | None:
    """The model of the GPU that this process uses, and the device that a worker uses for this model. None on a CPU."""
    with forking.held():
        from precompiled.graph import environment
    device = environment.likely_device()
    return None if device == "cpu" else (environment.gpu_model(device), environment.device_of_a_worker(device))


def identity() -> str:
    """A digest that identifies this program by the path of its main file, or by its text after ``-c``."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if path:
        return digest(os.path.realpath(path).encode())
    given = list(sys.orig_argv)
    return digest(json.dumps(given[given.index("-c") + 1 :][:1] if "-c" in given else []).encode())
