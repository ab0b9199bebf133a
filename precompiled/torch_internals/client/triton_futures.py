"""While an artifact is loaded: this thread's own table of the Triton kernels that it brings.

torch has one table for the process, from a kernel's source to what gives the kernel
(torch/_inductor/async_compile.py, CompiledTritonKernels). A load fills it, and the artifact's code empties it, kernel
by kernel. A compile in another thread clears it at its end, and a load there may have the same kernels: what is missing
then is built anew, by compilers in a client, or a good artifact seems to be a bad one.

Private names: torch._inductor.async_compile.CompiledTritonKernels.{_cache, cache_clear}.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch._inductor.async_compile import CompiledTritonKernels

_current = threading.local()  # .table: of a load
_install_lock = threading.Lock()


class _Table(dict[str, Any]):
    """The process's table, and in a thread that loads, that thread's."""

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key) if (own := _own()) is None else own[key]

    def __setitem__(self, key: str, value: Any) -> None:
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

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key, default) if (own := _own()) is None else own.get(key, default)

    def clear(self) -> None:
        if (own := _own()) is None:
            super().clear()
        else:
            own.clear()


def _own() -> dict[str, Any] | None:
    return getattr(_current, "table", None)


def _cache_clear() -> None:
    CompiledTritonKernels._cache.clear()  # torch's own puts another table in its place


@contextmanager
def of_this_thread() -> Iterator[None]:
    """In this thread, what is looked up and kept is of this load alone."""
    with _install_lock:
        if not isinstance(CompiledTritonKernels._cache, _Table):
            CompiledTritonKernels._cache = _Table(CompiledTritonKernels._cache)
            CompiledTritonKernels.cache_clear = staticmethod(_cache_clear)
    before, _current.table = _own(), {}
    try:
        yield
    finally:
        _current.table = before
