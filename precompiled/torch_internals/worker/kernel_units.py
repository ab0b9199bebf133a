"""Builds a graph's C++ kernels in a worker: all kernels of a wrapper together, instead of one by one.

A compiler spends almost all of its time on the header that Inductor's kernels include, even if the header is
precompiled. So the kernels of a wrapper are joined into one or a few translation units, each kernel in its own
namespace. Its header and flags are those of torch's own build. Its machine code is, too, or it has other calls and the
same values and speed (docs/decisions/0015). A kernel that would be slower gets a unit of its own. Kernels that the
store has are not built (store/kernel_files.py). A C++ wrapper (``cpp_wrapper``) contains its kernels and is built
separately, as in torch.

Private names: torch._inductor.codecache.CppPythonBindingsCodeCache.{load_pybinding, load_async, _load_library_inner,
entry_function, cache}, torch._inductor.codecache.CppWrapperCodeCache.{load_pybinding_async, _load_library_inner,
entry_function, cache}, torch._inductor.async_compile.AsyncCompile.submit, torch._inductor.config.compile_threads,
torch._inductor.cpp_builder.is_gcc, torch._inductor.runtime.cache_dir_utils.cache_dir. Checked on 2.11.0, 2.13.0,
2.15.0.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import torch._inductor.config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import CppPythonBindingsCodeCache, CppWrapperCodeCache
from torch._inductor.cpp_builder import is_gcc
from torch._inductor.runtime.cache_dir_utils import cache_dir

from precompiled.core import durable
from precompiled.core.errors import CorruptArtifact
from precompiled.core.spans import Span
from precompiled.store.kernel_files import KernelFile
from precompiled.torch_internals.inductor.cpp_kernels import (
    handled,
    kernel_name,
    load_kernel,
    module_name,
    wrapper_name,
)
from precompiled.torch_internals.worker import compile_phases

# Smaller units cost more compiler time than they save. Larger units take too much memory.
MIN_KERNELS, MAX_KERNELS = 8, 64
# GCC inlines less in a large translation unit, which makes kernels three times slower. A kernel in a unit of its own
# never reaches this limit.
_NO_LIMIT = ("--param large-unit-insns=1000000",)
# GCC inlines a large function that one kernel calls, but not one that several kernels of a unit call.
#
# - Kernels that transpose: the attribute "flatten" makes GCC inline every call, even those that a build of the kernel
#   alone keeps.
# - Kernels with WelfordHelper (batch norm): with AVX2 they get a unit of their own. With AVX512, GCC does not inline
#   welford_combine in some of them. But these kernels are as fast as in a unit of their own (docs/decisions/0015).
_WIDE = torch.backends.cpu.get_cpu_capability() == "AVX512"
_TRANSPOSES = re.compile(r"\btranspose_mxn\b")
_DEFINITION = re.compile(r'^extern "C"(?=\s+void\s+kernel\()', re.MULTILINE)


# Returns the files of the store that contain some of the kernels with these names.
FindKernels = Callable[[Collection[str]], Iterable[KernelFile]]


@dataclass(frozen=True)
class Native:
    """The native code of a graph.

    ``files`` maps a SHA-256 to the contents of a ``.so``. ``kernels`` maps each kernel of these files to the SHA-256 of
    its ``.so``. ``built``: how many of the graph's kernels this worker has built. ``reused``: how many it has found in
    the store.
    """

    files: dict[str, bytes]
    kernels: dict[str, str]
    built: int
    reused: int


class _Text(CppPythonBindingsCodeCache):
    """Builds nothing. The "kernel" is the text that torch would compile, including the Python binding."""

    @classmethod
    def load_async(cls, main_code: str, *_: object, **_options: object) -> Callable[[], ModuleType]:
        module = ModuleType("text")
        setattr(module, cls.entry_function, main_code)
        return lambda: module


class _Build(CppPythonBindingsCodeCache):
    """Builds as torch does, with torch's flags, precompiled header and file cache. Loads nothing."""

    # This cache is separate from the cache of CppPythonBindingsCodeCache, whose entries are modules.
    cache: ClassVar[dict[str, object]] = {}

    @classmethod
    def _load_library_inner(cls, path: str, key: str) -> object:
        return SimpleNamespace(path=path)


def precompile_header() -> None:
    """Precompile the header that kernels include, if it is missing. Raises the compiler's errors."""
    # torch precompiles the header in this call. The returned function, which would build this text, is not called.
    _Build.load_async("#include <torch/csrc/inductor/cpp_prefix.h>\n", "cpu")


class _WrapperBuild(CppWrapperCodeCache):
    """Builds a C++ wrapper as torch does, and returns the path of its ``.so`` instead of its entry function. Loads
    nothing.
    """

    cache: ClassVar[dict[str, object]] = {}

    @classmethod
    def _load_library_inner(cls, path: str, key: str) -> object:
        module = ModuleType("built")
        setattr(module, cls.entry_function, path)
        return module


class _Native:
    """Inductor's generated code receives this callable in place of native code that is not built yet.

    The callable must not be one of Inductor's futures, because the generated code would wait until the future is
    complete.
    """

    def __init__(self, collector: KernelCollector, name: str) -> None:
        self._collector = collector
        self.name = name

    def __call__(self, *args: object) -> object:
        return self._collector.loaded(self.name)(*args)


class _Kernel(_Native):
    def __init__(self, collector: KernelCollector, argtypes: list[str], source: str) -> None:
        super().__init__(collector, kernel_name(argtypes, source))
        self.joins = _joins(source)
        self.text: str = _Text.load_pybinding(argtypes, source)


_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(.*?)[ \t]*$", re.MULTILINE)


def _joins(source: str) -> bool:
    """Whether a kernel can share a unit with other kernels and compile to the same code.

    The kernel's only preprocessor directive must include the common header.
    """
    if "WelfordHelper" in source and not _WIDE:
        return False
    if _TRANSPOSES.search(source) and not (is_gcc() and len(_DEFINITION.findall(source)) == 1):
        return False
    found = [text for text in _DIRECTIVE.findall(source) if not text.startswith("pragma ")]
    return found == ["include <torch/csrc/inductor/cpp_prefix.h>"] and source.count('extern "C"') == 1


def unit_text(kernels: Sequence[_Kernel]) -> str:
    """One translation unit with ``kernels``, each as its own extension module (cpp_kernels.module_name)."""
    if len(kernels) == 1:
        # A single kernel is built as torch builds it, with all of its includes and defines.
        (kernel,) = kernels
        return f"#define PyInit_kernel PyInit_{module_name(kernel.name)}\n{kernel.text}"
    includes: dict[str, None] = {}
    parts = []
    for kernel in kernels:
        flattens = _TRANSPOSES.search(kernel.text)
        text = _DEFINITION.sub('extern "C" __attribute__((flatten))', kernel.text) if flattens else kernel.text
        lines = text.splitlines()
        # Inside a namespace, an include would declare its names in that namespace.
        includes |= dict.fromkeys(line.strip() for line in lines if line.lstrip().startswith("#include"))
        own = "\n".join(line for line in lines if not line.lstrip().startswith("#include"))
        name = module_name(kernel.name)
        # The names of these two functions must be changed, because they have C linkage, which ignores namespaces.
        renamed = [("kernel", name), ("PyInit_kernel", f"PyInit_{name}")]
        parts += [f"#define {old} {new}" for old, new in renamed]
        parts += [f"namespace unit_{name} {{", own, "}"]
        parts += [f"#undef {old}" for old, _ in renamed]
    return "\n".join([*includes, *parts, ""])


class _Unit:
    """Kernels that are built together, in another thread if Inductor's configuration allows threads."""

    def __init__(self, kernels: Sequence[_Kernel], spans: list[Span]) -> None:
        self.kernels = kernels
        threads = torch._inductor.config.compile_threads or 1
        submit = functools.partial(_submit, spans) if threads > 1 else None
        flags = _NO_LIMIT if len(kernels) > 1 and is_gcc() else ()
        self._built = _Build.load_async(unit_text(kernels), "cpu", submit_fn=submit, extra_flags=flags)

    def path(self) -> Path:
        """The ``.so``. Waits for the compiler and raises its error."""
        return Path(self._built().path)


def _submit(spans: list[Span], task: Callable[[], object]) -> object:
    """Run ``task`` in a thread, and add the time that it needs to ``spans``."""

    def run() -> object:
        with compile_phases.timed(spans):
            return task()

    return AsyncCompile.submit(run)


class _WrapperUnit:
    """A C++ wrapper that is built separately, in another thread, like the units of kernels."""

    def __init__(self, wrapper: _Native, options: Mapping[str, object], spans: list[Span]) -> None:
        self.kernels = [wrapper]
        threads = torch._inductor.config.compile_threads or 1
        init = f"PyInit_{_WrapperBuild.entry_function}"
        named = f"#define {init} PyInit_{module_name(wrapper.name)}\n{options['main_code']}"
        self._built = _WrapperBuild.load_pybinding_async(
            **{**options, "main_code": named}, submit_fn=functools.partial(_submit, spans) if threads > 1 else None
        )

    def path(self) -> Path:
        """The ``.so``. Waits for the compiler and raises its error."""
        return Path(self._built())


class KernelCollector:
    """Collects and builds the kernels of all wrappers that run while ``collected`` is open.

    Inductor waits for a graph's kernels when it runs the graph's wrapper. With this class the forward's kernels are
    built while the backward is lowered. ``native`` raises the compiler's errors.
    """

    def __init__(
        self,
        on_progress: Callable[[int, int], None] = lambda built, of: None,
        find_kernels: FindKernels = lambda names: (),
        spans: list[Span] | None = None,
    ) -> None:
        """After each unit, ``on_progress`` is called with the numbers of available kernels and of all kernels.
        ``spans`` receives the times of the compilers.
        """
        self._on_progress, self._find_kernels = on_progress, find_kernels
        self._spans = spans if spans is not None else []
        for cache in (_Build.cache, _WrapperBuild.cache):
            cache.clear()  # so that a killed compiler's kernels are built again; finished kernels are found on disk
        self._kernels: dict[str, _Native] = {}
        self._waiting: list[_Kernel] = []
        self._units: list[_Unit | _WrapperUnit] = []
        # maps the name of an available kernel to its .so and the file's SHA-256
        self._files: dict[str, tuple[Path, str]] = {}
        self._reused: set[str] = set()  # the kernels among them that are in files of the store

    def kernel(self, argtypes: list[str], source: str) -> _Native:
        kernel = _Kernel(self, argtypes, source)
        if kernel.name not in self._kernels:
            self._kernels[kernel.name] = kernel
            self._waiting.append(kernel)
        return self._kernels[kernel.name]

    def wrapper(self, options: Mapping[str, object]) -> _Native:
        wrapper = _Native(self, wrapper_name(options))
        if wrapper.name not in self._kernels:
            self._kernels[wrapper.name] = wrapper
            self._units.append(_WrapperUnit(wrapper, options, self._spans))
        return self._kernels[wrapper.name]

    def all_named(self, compiler: AsyncCompile | None = None) -> None:
        """Start the compilers for the kernels that were collected since the last call and that the store lacks."""
        self._reuse({kernel.name for kernel in self._waiting} - self._files.keys())
        missing = [kernel for kernel in self._waiting if kernel.name not in self._files]
        joining = [kernel for kernel in missing if kernel.joins]
        self._units += [_Unit([kernel], self._spans) for kernel in missing if not kernel.joins]
        threads = torch._inductor.config.compile_threads or 1
        self._units += [_Unit(part, self._spans) for part in divide_kernels(joining, threads)]
        self._waiting = []

    def loaded(self, name: str) -> Callable[..., object]:
        """The kernel as a callable. Waits until it is built."""
        self._build()
        path, digest = self._files[name]
        kernel: Callable[..., object] = load_kernel(name, path, digest)
        return kernel

    @property
    def is_building(self) -> bool:
        """Whether ``native`` would wait for compilers."""
        return bool(self._units)

    def native(self, in_settings: Callable[[], AbstractContextManager[object]] = nullcontext) -> Native:
        """All built kernels. Waits for the compilers.

        Raises the compilers' errors, or ImportError if a ``.so`` is unusable.

        ``in_settings``: a context with the settings of the compile. This method enters the context if kernels must be
        built again. Callers that have left the settings must pass one, because another graph may be lowered meanwhile.
        """
        self._build(in_settings)
        for name in self._kernels:
            try:
                self.loaded(name)
            # ``loaded`` reports a missing kernel as CorruptArtifact, but no artifact exists yet.
            except CorruptArtifact as error:
                raise ImportError(str(error)) from error
        files = {digest: path.read_bytes() for path, digest in self._files.values()}
        reused = len(self._kernels.keys() & self._reused)
        kernels = {name: digest for name, (_, digest) in self._files.items()}
        return Native(files, kernels, len(self._kernels) - reused, reused)

    def _reuse(self, names: Collection[str]) -> None:
        """Take kernels from files of the store. A file that this process cannot load is left out."""
        for file in self._find_kernels(names) if names else ():
            # The artifact with this file may be evicted at any time.
            path = Path(cache_dir(), "reused", f"{file.digest}.so")
            path.parent.mkdir(exist_ok=True)
            with durable.replacing(path, 0o700, sync=False) as copy:
                copy.write(file.content)
            try:
                for name in file.kernels.intersection(names):
                    load_kernel(name, path, file.digest)
            except CorruptArtifact as error:
                sys.stderr.write(f"kernels of the store are built again: {error}\n")
                continue
            self._files = {name: (path, file.digest) for name in file.kernels} | self._files
            self._reused |= file.kernels

    def _report_progress(self) -> None:
        self._on_progress(len(self._kernels.keys() & self._files.keys()), len(self._kernels))

    def _build(self, in_settings: Callable[[], AbstractContextManager[object]] = nullcontext) -> None:
        self.all_named()
        units, self._units = self._units, []
        if units:
            self._report_progress()
        while units:
            unit = units.pop(0)
            try:
                path = unit.path()
            except Exception as error:
                if isinstance(unit, _WrapperUnit) or len(unit.kernels) == 1:
                    raise
                # The kernels may conflict, or the memory was full. So build the kernels one by one, as torch does.
                said = f"{type(error).__name__}: ...{str(error)[-2000:]}"  # for the worker's log
                sys.stderr.write(f"{len(unit.kernels)} kernels are built separately: {said}\n")
                with in_settings():
                    units = [*(_Unit([kernel], self._spans) for kernel in unit.kernels), *units]
                continue
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            self._files |= {kernel.name: (path, digest) for kernel in unit.kernels}
            self._report_progress()


def divide_kernels(kernels: Sequence[object], threads: int) -> Iterator[Sequence[Any]]:
    """Divide kernels into units: one unit per thread, unless a unit would get fewer than MIN_KERNELS or more than
    MAX_KERNELS.
    """
    count = max(min(threads, len(kernels) // MIN_KERNELS), -(-len(kernels) // MAX_KERNELS), 1)
    for number in range(count):
        part = kernels[number::count]
        if part:
            yield part


@contextmanager
def collected(
    on_progress: Callable[[int, int], None],
    find_kernels: FindKernels = lambda names: (),
    spans: list[Span] | None = None,
) -> Iterator[KernelCollector]:
    collector = KernelCollector(on_progress, find_kernels, spans)
    with handled(collector):
        yield collector
