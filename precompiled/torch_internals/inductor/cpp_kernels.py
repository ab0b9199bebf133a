"""Intercepts Inductor's builds of C++ kernels: a worker collects the sources, and a client loads an artifact's kernels.

Each kernel is a plain extension module, which torch's serialized graph does not contain. When Inductor's generated
wrapper runs, ``AsyncCompile.cpp_pybinding(argtypes, source)`` builds the module. This file passes such calls to a
handler instead. In a worker the handler collects the sources (kernel_units.py). In a client the handler finds the
artifact's ``.so`` by the hash of the source, and loads it. So no compiler runs, not even to test vector units or to
precompile a header.

With ``cpp_wrapper``, the code around the kernels is C++ as well. The Python code then passes the whole C++ code to
``CppWrapperCodeCache.load_pybinding(...)``. This file handles the resulting extension module like a kernel's module.

Triton kernels are part of the pickled result (torch/_inductor/triton_bundler.py). While an artifact is loaded, this
file prevents two actions of torch that start processes:

- ``AsyncCompile.triton`` starts its pool of processes before it looks for kernels that are already built.
- Each load computes the hash of Triton's backend for the remote cache of autotuning, although this cache is off by
  default. With an empty Triton cache, computing the hash starts gcc to build Triton's driver, and ptxas to read its
  version.

Kernels read the address of _torchinductor_pyobject_tensor_data_ptr from an environment variable with this name in
capitals (torch/_inductor/codecache.py, CppPythonBindingsCodeCache).

Private names: torch._inductor.async_compile.AsyncCompile.{cpp_pybinding, wait, use_process_pool},
torch._inductor.codecache.CppWrapperCodeCache.{load_pybinding, entry_function},
torch._inductor.runtime.autotune_cache.has_triton, torch._inductor.config,
torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import CppWrapperCodeCache
from torch._inductor.runtime import autotune_cache

from precompiled.core.errors import CorruptArtifact
from precompiled.torch_internals.patches import Patches

_SLOT = "_torchinductor_pyobject_tensor_data_ptr"
_VARIABLE = "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"

# Per thread. ``handler`` receives the kernels; if it is None, torch builds them. ``alone``: torch must not start
# processes.
_current = threading.local()
_original: Callable[..., object] = AsyncCompile.cpp_pybinding
_original_wait: Callable[..., None] = AsyncCompile.wait
_original_use_process_pool: Callable[[], bool] = AsyncCompile.use_process_pool
_original_wrapper: Callable[..., object] = CppWrapperCodeCache.load_pybinding
_original_has_triton: Callable[..., bool] = autotune_cache.has_triton
_install_lock = threading.Lock()
_patches = Patches()


class KernelHandler(Protocol):
    """Receives the kernels of the wrappers that this thread runs."""

    def kernel(self, argtypes: list[str], source: str) -> Any:
        """The kernel as a callable."""

    def wrapper(self, options: dict[str, Any]) -> Any:
        """The callable of a C++ wrapper. ``options``: the arguments of Inductor's call (types, source, flags)."""

    def all_named(self, compiler: AsyncCompile) -> None:
        """A wrapper calls this method after it has requested all its kernels, and before it waits for them."""


def kernel_name(argtypes: list[str], source: str) -> str:
    """The name of a kernel: the SHA-256 of its types and source."""
    return hashlib.sha256(json.dumps([list(argtypes), source]).encode()).hexdigest()


def wrapper_name(options: Mapping[str, object]) -> str:
    """The name of a C++ wrapper: the SHA-256 of all that affects its build."""
    return hashlib.sha256(json.dumps(["wrapper", options], sort_keys=True).encode()).hexdigest()


def module_name(kernel: str) -> str:
    """The name of a kernel's extension module in a ``.so`` with several modules: a C identifier with half of the
    digest.
    """
    return f"kernel_{kernel[:32]}"


def _cpp_pybinding(self: AsyncCompile, argtypes: list[str], source_code: str) -> object:
    handler: KernelHandler | None = getattr(_current, "handler", None)
    if handler is None:
        return _original(self, argtypes, source_code)
    return handler.kernel(argtypes, source_code)


def _load_wrapper(*args: object, **options: object) -> object:
    handler: KernelHandler | None = getattr(_current, "handler", None)
    # Inductor's code passes all arguments by name. A call with positional arguments comes from other code.
    return _original_wrapper(*args, **options) if handler is None or args else handler.wrapper(options)


def _wait(self: AsyncCompile, scope: Mapping[str, object]) -> None:
    handler: KernelHandler | None = getattr(_current, "handler", None)
    if handler is not None:
        handler.all_named(self)
    _original_wait(self, scope)


def _use_process_pool() -> bool:
    return False if getattr(_current, "alone", False) else _original_use_process_pool()


def _has_triton(**options: object) -> bool:
    if getattr(_current, "alone", False) and not torch._inductor.config.bundled_autotune_remote_cache:
        return False
    return _original_has_triton(**options)


@contextmanager
def handled(handler: KernelHandler, *, alone: bool = False) -> Iterator[None]:
    """Within the block, pass the kernels that this thread builds to ``handler``.

    ``alone``: prevent torch from starting processes within the block.
    """
    with _install_lock:
        if not _patches:
            _patches.replace(AsyncCompile, "cpp_pybinding", lambda _: _cpp_pybinding)
            _patches.replace(AsyncCompile, "wait", lambda _: _wait)
            _patches.replace(AsyncCompile, "use_process_pool", lambda _: staticmethod(_use_process_pool))
            _patches.replace(CppWrapperCodeCache, "load_pybinding", lambda _: staticmethod(_load_wrapper))
            _patches.replace(autotune_cache, "has_triton", lambda _: _has_triton)
    before = getattr(_current, "handler", None), getattr(_current, "alone", False)
    _current.handler, _current.alone = handler, alone
    try:
        yield
    finally:
        _current.handler, _current.alone = before


@dataclass(frozen=True)
class _Mapped:
    files: Mapping[str, tuple[Path, str]]

    def kernel(self, argtypes: list[str], source: str) -> object:
        return self._load(kernel_name(argtypes, source))

    def wrapper(self, options: Mapping[str, object]) -> object:
        return self._load(wrapper_name(options))

    def _load(self, name: str) -> object:
        file = self.files.get(name)
        if file is None:
            # Building the kernel would start a compiler in a client, and hide that the artifact is incomplete.
            raise CorruptArtifact(f"the artifact lacks the native code of the kernel {name[:12]}")
        return load_kernel(name, *file)

    def all_named(self, compiler: AsyncCompile) -> None:
        """Do nothing, because no kernel is being built."""


def mapped(files: Mapping[str, tuple[Path, str]]) -> AbstractContextManager[None]:
    """Within this context, serve the kernels of this thread from ``files``.

    ``files`` maps a kernel's name to a ``.so`` and its SHA-256, which the caller has checked. Raises CorruptArtifact
    for a kernel that is not in ``files``.
    """
    return handled(_Mapped(files), alone=True)


# The keys are the kernel's name and the SHA-256 of the .so, because different compiler flags build different .so files
# from one source.
_loaded: dict[tuple[str, str], object] = {}


def load_kernel(name: str, path: Path, digest: str) -> Any:
    """Return the kernel from the ``.so`` at ``path``, whose SHA-256 is ``digest``. Raises CorruptArtifact."""
    known = _loaded.get((name, digest))
    if known is not None:
        return known
    slot = str(getattr(torch._C._dynamo.guards, _SLOT))
    # Set the variable only once, because another thread may read the environment in C, without the GIL.
    if os.environ.get(_VARIABLE) != slot:
        os.environ[_VARIABLE] = slot
    # The import system derives the name of the init function from the last part of the module's name. The loader maps a
    # file with several modules only once, because it identifies the file by its inode.
    module_path = f"precompiled.native_{digest}.{module_name(name)}"
    loader = importlib.machinery.ExtensionFileLoader(module_path, str(path))  # a file in memory has no suffix
    spec = importlib.machinery.ModuleSpec(module_path, loader, origin=str(path))
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise CorruptArtifact(f"{path} cannot be loaded: {error}") from error
    sys.modules[spec.name] = module
    entry = getattr(module, "kernel" if hasattr(module, "kernel") else CppWrapperCodeCache.entry_function)
    _loaded[name, digest] = entry
    return entry
