"""Inductor's C++ kernels: the seam where they are built, and how a client maps those of an artifact.

Each kernel is a plain extension module, built from the source that Inductor's generated wrapper passes to
``AsyncCompile.cpp_pybinding(argtypes, source)`` when it is executed. That call is where this file sits: in a worker it
collects the sources (kernel_units.py), in a client it maps the ``.so`` of the artifact from the hash of the source,
so that no compiler, no probe of vector units and no precompiled header is run (docs/decisions/0003).

Triton kernels come with the pickled result (torch/_inductor/triton_bundler.py). ``AsyncCompile.triton`` asks for its
pool of processes before it looks at what is there already, and asking starts one: not while an artifact is loaded.

Private names: torch._inductor.async_compile.AsyncCompile.{cpp_pybinding, wait, use_process_pool},
torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr. Checked on 2.11.0, 2.13.0, 2.15.0. The kernels read the
last one from the environment variable _TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR (torch/_inductor/codecache.py,
CppPythonBindingsCodeCache).
"""

from __future__ import annotations

import hashlib
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

from precompiled.core.errors import CorruptArtifact

_SLOT = "_torchinductor_pyobject_tensor_data_ptr"
_VARIABLE = "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"

# .handler: what cpp_pybinding and wait do in this thread; absent: what torch does. .alone: no pool of processes.
_current = threading.local()
_original: Callable[..., Any] = AsyncCompile.cpp_pybinding
_original_wait: Callable[..., None] = AsyncCompile.wait
_original_use_process_pool: Callable[[], bool] = AsyncCompile.use_process_pool
_install_lock = threading.Lock()


class Handler(Protocol):
    """What is done with the kernels of the wrappers that this thread executes."""

    def kernel(self, argtypes: list[str], source: str) -> Any:
        """The kernel, callable with its arguments."""

    def all_named(self, compiler: AsyncCompile) -> None:
        """A wrapper has named all its kernels, and would wait for them now."""


def kernel_name(argtypes: list[str], source: str) -> str:
    """The name of a kernel: the SHA-256 of what it is built from."""
    return hashlib.sha256(json.dumps([list(argtypes), source]).encode()).hexdigest()


def module_name(kernel: str) -> str:
    """Of the extension module that holds it, in a file that holds several; in C, half a digest tells them apart."""
    return f"kernel_{kernel[:32]}"


def _cpp_pybinding(self: AsyncCompile, argtypes: list[str], source_code: str) -> Any:
    handler: Handler | None = getattr(_current, "handler", None)
    if handler is None:
        return _original(self, argtypes, source_code)
    return handler.kernel(argtypes, source_code)


def _wait(self: AsyncCompile, scope: dict[str, Any]) -> None:
    handler: Handler | None = getattr(_current, "handler", None)
    if handler is not None:
        handler.all_named(self)
    _original_wait(self, scope)


def _use_process_pool() -> bool:
    return False if getattr(_current, "alone", False) else _original_use_process_pool()


@contextmanager
def handled(handler: Handler, *, alone: bool = False) -> Iterator[None]:
    """In this thread, ``handler`` has the kernels. ``alone``: nor does anything here start a pool of processes."""
    with _install_lock:
        if AsyncCompile.cpp_pybinding is not _cpp_pybinding:
            AsyncCompile.cpp_pybinding = _cpp_pybinding
            AsyncCompile.wait = _wait
            AsyncCompile.use_process_pool = staticmethod(_use_process_pool)
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
        name = kernel_name(argtypes, source)
        file = self.files.get(name)
        if file is None:
            # Building it here would start a compiler in a client and hide that the artifact is not self-contained.
            raise CorruptArtifact(f"the artifact lacks the native code of the kernel {name[:12]}")
        return load_kernel(name, *file)

    def all_named(self, compiler: AsyncCompile) -> None:
        """Nothing is being built."""


def mapped(files: Mapping[str, tuple[Path, str]]) -> AbstractContextManager[None]:
    """In this thread, serve kernels from ``files``: kernel name to a ``.so`` and its SHA-256, which was checked.

    A kernel that is not there is an error.
    """
    return handled(_Mapped(files), alone=True)


# By kernel, and the SHA-256 of the .so: one source has several, by the compiler's flags.
_loaded: dict[tuple[str, str], Any] = {}


def load_kernel(name: str, path: Path, digest: str) -> Any:
    """The kernel, from the ``.so`` that holds it, whose SHA-256 is ``digest``. Raises CorruptArtifact."""
    known = _loaded.get((name, digest))
    if known is not None:
        return known
    os.environ[_VARIABLE] = str(getattr(torch._C._dynamo.guards, _SLOT))
    # The import system derives the function that makes the module from the last part of the name. A file of several is
    # mapped once: the loader knows it by its inode.
    spec = importlib.util.spec_from_file_location(f"precompiled.native_{digest}.{module_name(name)}", path)
    if spec is None or spec.loader is None:
        raise CorruptArtifact(f"{path} is no extension module")
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise CorruptArtifact(f"{path} cannot be loaded: {error}") from error
    sys.modules[spec.name] = module
    _loaded[name, digest] = module.kernel
    return module.kernel
