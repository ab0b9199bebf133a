"""Inductor's C++ kernels: taken out of a compile as files, and put back without a compiler.

Each kernel is a plain extension module, built from the source that Inductor's generated wrapper passes to
``AsyncCompile.cpp_pybinding(argtypes, source)`` when it is executed. That call is where this file sits: in a worker it
notes which ``.so`` came of which source, in a client it maps the ``.so`` of the artifact from the hash of the source,
so that no compiler, no probe of vector units and no precompiled header is run (0.9 s of a warm start of GPT-2).

Triton kernels come with the pickled result (torch/_inductor/triton_bundler.py). ``AsyncCompile.triton`` asks for its
pool of processes before it looks at what is there already, and asking starts one: not while an artifact is loaded.

Private names: torch._inductor.async_compile.AsyncCompile.{cpp_pybinding, use_process_pool},
torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr (read by the kernels from the environment variable
_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR: torch/_inductor/codecache.py, CppPythonBindingsCodeCache).
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._inductor.async_compile import AsyncCompile

from precompiled.errors import CorruptArtifact

_SLOT = "_torchinductor_pyobject_tensor_data_ptr"
_VARIABLE = "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"

# .handler: what cpp_pybinding does in this thread; absent: what torch does. .alone: no pool of processes.
_current = threading.local()
_original: Callable[..., Any] = AsyncCompile.cpp_pybinding
_original_use_process_pool: Callable[[], bool] = AsyncCompile.use_process_pool
_install_lock = threading.Lock()


def kernel_name(argtypes: list[str], source: str) -> str:
    """The name of a kernel: the SHA-256 of what it is built from."""
    return hashlib.sha256(json.dumps([list(argtypes), source]).encode()).hexdigest()


def _dispatch(self: AsyncCompile, argtypes: list[str], source_code: str) -> Any:
    handler = getattr(_current, "handler", None)
    if handler is None:
        return _original(self, argtypes, source_code)
    return handler(self, argtypes, source_code)


def _use_process_pool() -> bool:
    return False if getattr(_current, "alone", False) else _original_use_process_pool()


@contextmanager
def _handled(handler: Callable[[AsyncCompile, list[str], str], Any], *, alone: bool = False) -> Iterator[None]:
    with _install_lock:
        if AsyncCompile.cpp_pybinding is not _dispatch:
            AsyncCompile.cpp_pybinding = _dispatch
            AsyncCompile.use_process_pool = staticmethod(_use_process_pool)
    before = getattr(_current, "handler", None), getattr(_current, "alone", False)
    _current.handler, _current.alone = handler, alone
    try:
        yield
    finally:
        _current.handler, _current.alone = before


class _Kernel:
    """A kernel that is being built in another thread. Not one of Inductor's futures, which it would wait for."""

    def __init__(self, building: Any) -> None:
        self._building = building

    def built(self) -> Callable[..., Any]:
        """Waits for the compiler; raises what it said."""
        found: Callable[..., Any] = self._building.result() if hasattr(self._building, "result") else self._building
        return found

    def __call__(self, *args: Any) -> Any:
        return self.built()(*args)


class Recorder:
    """The kernels that were built while ``recorded`` was open.

    Inductor waits for a graph's kernels where it executes the graph's wrapper. Here the kernels of the forward are
    built while the backward is being lowered, and what one of them fails with comes out of ``files``.
    """

    def __init__(self) -> None:
        self._kernels: dict[str, _Kernel] = {}

    def __call__(self, compiler: AsyncCompile, argtypes: list[str], source: str) -> Any:
        kernel = _Kernel(_original(compiler, argtypes, source))
        return self._kernels.setdefault(kernel_name(argtypes, source), kernel)

    def files(self) -> dict[str, bytes]:
        """The contents of each kernel's ``.so``, by kernel name."""
        return {
            name: Path(kernel.built().__self__.__file__).read_bytes()  # type: ignore[attr-defined]
            for name, kernel in self._kernels.items()
        }


@contextmanager
def recorded() -> Iterator[Recorder]:
    recorder = Recorder()
    with _handled(recorder):
        yield recorder


@contextmanager
def mapped(files: Mapping[str, tuple[Path, str]]) -> Iterator[None]:
    """In this thread, serve kernels from ``files``: kernel name to a ``.so`` and its SHA-256, which was checked.

    A kernel that is not there is an error.
    """

    def load(_compiler: AsyncCompile, argtypes: list[str], source: str) -> Any:
        name = kernel_name(argtypes, source)
        file = files.get(name)
        if file is None:
            # Building it here would start a compiler in a client and hide that the artifact is not self-contained.
            raise CorruptArtifact(f"the artifact lacks the native code of the kernel {name[:12]}")
        return _load_kernel(*file)

    with _handled(load, alone=True):
        yield


_loaded: dict[str, Any] = {}  # by the SHA-256 of the .so: one source has several, by the compiler's flags


def _load_kernel(path: Path, digest: str) -> Any:
    known = _loaded.get(digest)
    if known is not None:
        return known
    os.environ[_VARIABLE] = str(getattr(torch._C._dynamo.guards, _SLOT))
    # The import system derives PyInit_kernel from the last part of the name.
    spec = importlib.util.spec_from_file_location(f"precompiled_native_{digest}.kernel", path)
    if spec is None or spec.loader is None:
        raise CorruptArtifact(f"{path} is no extension module")
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise CorruptArtifact(f"{path} cannot be loaded: {error}") from error
    sys.modules[spec.name] = module
    _loaded[digest] = module.kernel
    return module.kernel
