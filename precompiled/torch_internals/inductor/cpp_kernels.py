"""Inductor's C++ kernels: a handler for the call that builds them, and how a client maps those of an artifact.

Each kernel is a plain extension module, built from the source that Inductor's generated wrapper passes to
``AsyncCompile.cpp_pybinding(argtypes, source)`` when it is executed. This file replaces that method: in a worker a
handler collects the sources (kernel_units.py), in a client one maps the artifact's ``.so`` by the hash of the source,
so that no compiler, no probe of vector units and no precompiled header is run (docs/decisions/0003).

With ``cpp_wrapper``, the code around the kernels is C++ as well. What Python executes then passes all of it to
``CppWrapperCodeCache.load_pybinding(...)``: one more such module, which is replaced and mapped in the same way.

Triton kernels come with the pickled result (torch/_inductor/triton_bundler.py). ``AsyncCompile.triton`` asks for its
pool of processes before it looks for built kernels, and that starts a pool: prevented while an artifact is loaded. At
each load Inductor computes the hash of Triton's backend, for a remote cache of autotuning that is off by default. With
an empty Triton cache, that hash starts gcc for Triton's driver and ptxas for its version: prevented, too.

Private names: torch._inductor.async_compile.AsyncCompile.{cpp_pybinding, wait, use_process_pool},
torch._inductor.codecache.CppWrapperCodeCache.{load_pybinding, entry_function},
torch._inductor.runtime.autotune_cache.has_triton, torch._inductor.config,
torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr. Checked on 2.11.0, 2.13.0, 2.15.0. The kernels read the
last one from the environment variable _TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR (torch/_inductor/codecache.py,
CppPythonBindingsCodeCache).
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

_SLOT = "_torchinductor_pyobject_tensor_data_ptr"
_VARIABLE = "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"

# .handler: gets cpp_pybinding and wait in this thread; without one, torch does. .alone: no pool of processes.
_current = threading.local()
_original: Callable[..., Any] = AsyncCompile.cpp_pybinding
_original_wait: Callable[..., None] = AsyncCompile.wait
_original_use_process_pool: Callable[[], bool] = AsyncCompile.use_process_pool
_original_wrapper: Callable[..., Any] = CppWrapperCodeCache.load_pybinding
_original_has_triton: Callable[..., bool] = autotune_cache.has_triton
_install_lock = threading.Lock()


class Handler(Protocol):
    """Gets the kernels of the wrappers that this thread executes."""

    def kernel(self, argtypes: list[str], source: str) -> Any:
        """The kernel, callable with its arguments."""

    def wrapper(self, options: dict[str, Any]) -> Any:
        """The entry of a wrapper in C++. ``options``: what Inductor's code passes, by name: types, source, flags."""

    def all_named(self, compiler: AsyncCompile) -> None:
        """A wrapper has named all its kernels, and would wait for them now."""


def kernel_name(argtypes: list[str], source: str) -> str:
    """The name of a kernel: the SHA-256 of its types and source."""
    return hashlib.sha256(json.dumps([list(argtypes), source]).encode()).hexdigest()


def wrapper_name(options: Mapping[str, Any]) -> str:
    """The name of a wrapper in C++: the SHA-256 of all that it is built from."""
    return hashlib.sha256(json.dumps(["wrapper", options], sort_keys=True).encode()).hexdigest()


def module_name(kernel: str) -> str:
    """The name of a kernel's extension module, in a file that holds several: a C name, with half of the digest."""
    return f"kernel_{kernel[:32]}"


def _cpp_pybinding(self: AsyncCompile, argtypes: list[str], source_code: str) -> Any:
    handler: Handler | None = getattr(_current, "handler", None)
    if handler is None:
        return _original(self, argtypes, source_code)
    return handler.kernel(argtypes, source_code)


def _load_wrapper(*args: Any, **options: Any) -> Any:
    handler: Handler | None = getattr(_current, "handler", None)
    # Inductor's code names all arguments. Another call is somebody else's.
    return _original_wrapper(*args, **options) if handler is None or args else handler.wrapper(options)


def _wait(self: AsyncCompile, scope: dict[str, Any]) -> None:
    handler: Handler | None = getattr(_current, "handler", None)
    if handler is not None:
        handler.all_named(self)
    _original_wait(self, scope)


def _use_process_pool() -> bool:
    return False if getattr(_current, "alone", False) else _original_use_process_pool()


def _has_triton(**options: Any) -> bool:
    if getattr(_current, "alone", False) and not torch._inductor.config.bundled_autotune_remote_cache:
        return False
    return _original_has_triton(**options)


@contextmanager
def handled(handler: Handler, *, alone: bool = False) -> Iterator[None]:
    """In this thread, ``handler`` gets the kernels. ``alone``: and no process is started."""
    with _install_lock:
        if AsyncCompile.cpp_pybinding is not _cpp_pybinding:
            AsyncCompile.cpp_pybinding = _cpp_pybinding
            AsyncCompile.wait = _wait
            AsyncCompile.use_process_pool = staticmethod(_use_process_pool)
            CppWrapperCodeCache.load_pybinding = staticmethod(_load_wrapper)
            autotune_cache.has_triton = _has_triton
    before = getattr(_current, "handler", None), getattr(_current, "alone", False)
    _current.handler, _current.alone = handler, alone
    try:
        yield
    finally:
        _current.handler, _current.alone = before


@dataclass(frozen=True)
class _Mapped:
    files: Mapping[str, tuple[Path, str]]

    def kernel(self, argtypes: list[str], source: str) -> Any:
        return self._load(kernel_name(argtypes, source))

    def wrapper(self, options: dict[str, Any]) -> Any:
        return self._load(wrapper_name(options))

    def _load(self, name: str) -> Any:
        file = self.files.get(name)
        if file is None:
            # To build it would start a compiler in a client, and hide that the artifact is incomplete.
            raise CorruptArtifact(f"the artifact lacks the native code of the kernel {name[:12]}")
        return load_kernel(name, *file)

    def all_named(self, compiler: AsyncCompile) -> None:
        """Do nothing: no kernel is being built."""


def mapped(files: Mapping[str, tuple[Path, str]]) -> AbstractContextManager[None]:
    """In this thread, serve kernels from ``files``: kernel name to a ``.so`` and its SHA-256, which was checked.

    Raises CorruptArtifact for a kernel that is not in ``files``.
    """
    return handled(_Mapped(files), alone=True)


# By the kernel's name and the .so's SHA-256: one source has several .so, by the compiler's flags.
_loaded: dict[tuple[str, str], Any] = {}


def load_kernel(name: str, path: Path, digest: str) -> Any:
    """The kernel, from the ``.so`` that holds it, whose SHA-256 is ``digest``. Raises CorruptArtifact."""
    known = _loaded.get((name, digest))
    if known is not None:
        return known
    slot = str(getattr(torch._C._dynamo.guards, _SLOT))
    if os.environ.get(_VARIABLE) != slot:  # once: another thread may read the environment in C, without Python's lock
        os.environ[_VARIABLE] = slot
    # The import system derives the name of the init function from the last part of the module's. A file with several
    # modules is mapped once: the loader knows it by its inode.
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
