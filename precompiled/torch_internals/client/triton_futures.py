"""Gives each thread that loads an artifact its own table of the Triton kernels that the artifact contains.

Torch has one table per process, which maps the source of a kernel to the kernel's future
(torch/_inductor/async_compile.py, CompiledTritonKernels). A load fills the table, and the artifact's code removes each
kernel that it takes. But a compile in another thread clears the table at its end, and a load in another thread may take
a kernel of the same source. Compilers in the client would then rebuild the missing kernel, or a valid artifact would
appear to be invalid.

Private names: torch._inductor.async_compile.CompiledTritonKernels.{_cache, cache_clear}.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch._inductor.async_compile import CompiledTritonKernels

from precompiled.torch_internals.patches import Patches

_current = threading.local()  # its attribute ``table`` is the table of the current load
_install_lock = threading.Lock()
_patches = Patches()


class _Table(dict[str, Any]):
    """Replaces the process's table. In a thread that loads an artifact, each access goes to that thread's own table."""

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key) if (own := _own()) is None else own[key]

    def __setitem__(self, key: str, value: object) -> None:
        if (own := _own()) is None:
            super().__setitem__(key, value)
        else:
            own[key] = value

    def __delitem__(self, key: str) -> None:
        if (own := _own()) is None:
            super().__delitem__(key)
        else:
            del own[key]

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) if (own := _own()) is None else key in own

    def get(self, key: str, default: object = None) -> Any:
        return super().get(key, default) if (own := _own()) is None else own.get(key, default)

    def clear(self) -> None:
        if (own := _own()) is None:
            super().clear()
        else:
            own.clear()


def _own() -> dict[str, object] | None:
    return getattr(_current, "table", None)


def _cache_clear() -> None:
    CompiledTritonKernels._cache.clear()  # torch's own method replaces the table object


@contextmanager
def of_this_thread() -> Iterator[None]:
    """Within this context, the table of this thread contains only the kernels of this load."""
    with _install_lock:
        if not isinstance(CompiledTritonKernels._cache, _Table):
            _patches.replace(CompiledTritonKernels, "_cache", _Table)
            _patches.replace(CompiledTritonKernels, "cache_clear", lambda _: staticmethod(_cache_clear))
    before, _current.table = _own(), {}
    try:
        yield
    finally:
        _current.table = before
