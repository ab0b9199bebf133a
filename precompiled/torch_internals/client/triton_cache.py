"""Makes Triton look up kernels in the store if Triton's own cache lacks them.

Triton compiles a kernel in these steps (triton/compiler/compiler.py, compile)::

    get_group("add.json")       the files of the kernel, or nothing: then Triton compiles
    put(data, "add.cubin")      after each stage; the stages before the cubin, and the source, are texts
    put_group("add.json", ...)  the kernel is complete

Triton's cache manager serves these calls from the folder TRITON_CACHE_DIR. ``StoreCacheManager`` is a subclass of this
manager, which also uses the store. A kernel of the store is copied to the folder, because torch and other libraries
read the folder, too. Triton's cache also contains Triton's C modules (launchers), and the times that
``@triton.autotune(cache_results=True)`` has measured.

The store's key of a kernel contains Triton's own key. Triton's key covers the sources of Triton, of the kernel, and of
the functions that the kernel calls. Triton's key also covers the globals that the kernel reads, arguments, options, the
GPU's architecture and the version of ptxas. The key of a C module also contains what its machine code depends on, and
the key of an autotuner's times contains the GPU's model.

The recipe of a kernel (user_code/kernel_recipes.py) comes from the local variables ``src``, ``options`` and ``backend``
of Triton's function ``compile``, which calls the manager.

If a process changes what Triton compiles, but not Triton's key, the store does not serve the process (``_is_shared``).

Private names: triton.knobs.{build.impl, cache.{dir, manager_class}, compilation.{always_compile, dump_ir, override,
use_ir_loc}, nvidia.mock_ptx_version, propagate_env, runtime.add_stages_inspection_hook},
triton.runtime.cache.FileCacheManager.key, triton.compiler.compiler.{ASTSource, compile}.
Checked on 2.11.0, 2.15.0 with the Triton that they require, and on 2.13.0 with Triton 3.7.0.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Protocol

import torch
import triton
from triton import knobs
from triton.runtime.cache import FileCacheManager

from precompiled import parts
from precompiled.core import interruptions
from precompiled.store.artifact_format import digest
from precompiled.store.kernel_turns import KernelTurn
from precompiled.store.triton_kernels import FORMAT

# Triton's own C modules. A C module of a library is not shared, because its code may be valid on one host only.
_MODULES = ("__triton_launcher.", "cuda_utils.", "hip_utils.")
_TIMES = ".autotune.json"
# Variables that load code into Triton's compiler.
_PLUGINS = ("LLVM_PASS_PLUGIN_PATH", "TRITON_PLUGIN_PATHS", "TRITON_PASS_PLUGIN_PATH")


class KernelLookupProtocol(Protocol):
    """client/triton_kernels.KernelLookup looks up and publishes kernels. The methods raise no errors."""

    with_texts: bool

    def find(self, key: str, *, in_turn: bool) -> tuple[dict[str, bytes] | None, KernelTurn | None]:
        """Return the files of a kernel. If the store lacks the kernel, return the turn to compile it, or None to
        compile without a turn.
        """

    def publish(self, key: str, name: str, files: dict[str, bytes]) -> None:
        """Publish a kernel that this process has compiled."""

    def note(self, key: str, name: str, describe: Callable[[], dict[str, Any]]) -> None:
        """Record that this process uses a kernel. ``describe``: returns its recipe (user_code/kernel_recipes.py), or
        raises Bypass.
        """

    def failed(self, error: Exception) -> None:
        """Report an error. Triton then compiles the kernel, as it would without the store."""


_lookup: KernelLookupProtocol | None = None


def install(lookup: KernelLookupProtocol) -> bool:
    """Make Triton use the store. Returns false if the program has a cache manager of its own, which then stays."""
    global _lookup  # noqa: PLW0603
    if os.environ.get("TRITON_CACHE_MANAGER") or knobs.cache.manager_class not in (None, StoreCacheManager):
        return False
    _lookup = lookup
    knobs.cache.manager_class = StoreCacheManager
    return True


def remove() -> None:
    """Restore Triton's own manager. Kernels that are being compiled are not published."""
    global _lookup  # noqa: PLW0603
    _lookup = None
    if vars(knobs.cache).get("manager_class") is StoreCacheManager:
        del knobs.cache.manager_class


@contextmanager
def used(lookup: KernelLookupProtocol, folder: str) -> Iterator[None]:
    """Within this context, Triton uses the store, and keeps its own files in ``folder``. Raises ValueError if this
    process has a cache manager of its own.
    """
    if not install(lookup):
        raise ValueError("this process has a cache manager of its own for Triton")
    try:
        knobs.cache.dir = folder
        yield
    finally:
        del knobs.cache.dir
        remove()


class StoreCacheManager(FileCacheManager):
    """Triton's manager of one kernel's files, which also uses the store."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        super().__init__(key, override=override, dump=dump)
        self._lookup = None if override or dump or not _is_shared() else _lookup
        self._turn: KernelTurn | None = None
        self._new: dict[str, bytes] = {}  # the files that this process has compiled
        self._has_code = False

    def get_group(self, filename: str) -> dict[str, str] | None:
        found = super().get_group(filename)
        if (found and filename in found) or self._lookup is None:
            return found
        if self._copied(filename):
            self._note(filename, sys._getframe(1))
            return super().get_group(filename)
        # While this process looked up the kernel, another process may have compiled the kernel into the same folder.
        found = super().get_group(filename)
        if found and filename in found:
            self._end_turn()
        return found

    def get_file(self, filename: str) -> str | None:
        found = super().get_file(filename)
        if found is not None or self._lookup is None or not filename.startswith(_MODULES) | filename.endswith(_TIMES):
            return found
        self._copied(filename)
        if (found := super().get_file(filename)) is not None:
            self._end_turn()
        return found

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        path = super().put(data, filename, binary)
        if self._lookup is not None:
            if self._turn is not None:
                self._turn.beat()
            is_whole = filename.startswith(_MODULES) or filename.endswith(_TIMES)
            if is_whole or isinstance(data, bytes) or filename.endswith(".json") or self._lookup.with_texts:
                self._new[filename] = data if isinstance(data, bytes) else str(data).encode()
            self._has_code |= isinstance(data, bytes)
            if is_whole:
                self._publish(filename)
        return path

    def put_group(self, filename: str, group: dict[str, str]) -> str:
        path = super().put_group(filename, group)
        if self._lookup is not None and self._has_code and not _has_override(self._new[filename]):
            self._publish(filename)
            self._note(filename, sys._getframe(1))
        self._end_turn()
        return str(path)

    # ------------------------------------------------------------------ inside

    def _copied(self, filename: str) -> bool:
        """Copy the files from the store to Triton's folder. Returns false if the store lacks them."""
        assert self._lookup is not None
        try:
            # Processes that measure times for autotuning do not wait for each other, because each uses a separate GPU.
            in_turn = not filename.endswith(_TIMES)
            files, self._turn = self._lookup.find(self._store_key(filename), in_turn=in_turn)
            if files is None:
                return False
            group = {name: super(StoreCacheManager, self).put(data, name) for name, data in files.items()}
            if len(group) > 1:
                super().put_group(filename, group)
            return True
        except Exception as error:  # noqa: BLE001 - Triton compiles the kernel
            interruptions.pass_on(error)
            self._lookup.failed(error)
            return False

    def _publish(self, filename: str) -> None:
        assert self._lookup is not None
        try:
            self._lookup.publish(self._store_key(filename), filename.rpartition(".")[0], self._new)
        except Exception as error:  # noqa: BLE001 - Triton uses the kernel that it has compiled
            interruptions.pass_on(error)
            self._lookup.failed(error)
        self._end_turn()

    def _note(self, filename: str, caller: FrameType) -> None:
        """Call ``note`` of the lookup with the kernel that Triton's function ``compile`` compiles."""
        assert self._lookup is not None
        from triton.compiler import compiler  # this file is imported while Triton is imported

        from precompiled.torch_internals.user_code import kernel_recipes

        found = caller.f_locals
        if caller.f_code is not compiler.compile.__code__ or type(found["src"]) is not compiler.ASTSource:
            return  # the kernel is given as IR, or in another language than Triton's

        def describe() -> dict[str, Any]:
            return kernel_recipes.describe(found["src"], found["options"], found["backend"])

        try:
            self._lookup.note(self._store_key(filename), filename.rpartition(".")[0], describe)
        except Exception as error:  # noqa: BLE001 - Triton uses the kernel nevertheless
            interruptions.pass_on(error)
            self._lookup.failed(error)

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._turn.end()
            self._turn = None

    def _store_key(self, filename: str) -> str:
        facts: list[object] = [FORMAT, self.key, filename]
        if filename.startswith(_MODULES):
            libc = ""
            with suppress(OSError, ValueError):
                libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
            facts += [triton.__version__, sys.version, platform.machine(), libc, knobs.build.cc]
        elif filename.endswith(_TIMES):
            gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
            made_up = parts.MADE_UP_CUDA.get()
            facts += [gpu.name, gpu.total_memory, gpu.multi_processor_count]
            facts.append(made_up is not None and made_up.is_active())
        elif self._lookup is not None:
            facts.append(self._lookup.with_texts)
        return digest(json.dumps(facts).encode())


def _is_shared() -> bool:
    """Whether Triton's key determines what Triton compiles in this process now."""
    compilation = knobs.compilation
    return not (
        compilation.always_compile
        or compilation.override
        or compilation.dump_ir
        or compilation.use_ir_loc
        or knobs.runtime.add_stages_inspection_hook is not None
        or knobs.build.impl is not None
        or knobs.nvidia.mock_ptx_version is not None
        or any(os.environ.get(name) for name in _PLUGINS)
        or not knobs.propagate_env  # Triton's key contains options only as environment variables
    )


def _has_override(metadata: bytes) -> bool:
    """Whether a file of the user replaced a stage of the compile. Triton's key contains only the file's name."""
    return bool(json.loads(metadata).get("ir_override"))
