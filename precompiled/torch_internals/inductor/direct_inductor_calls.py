"""Detects Inductor compiles that bypass ``torch.compile``'s backend, or whose result torch saves.

``torch._inductor.compile``, ``standalone_compile``, AOTInductor, ``maybe_enable_compiled_autograd`` and third-party
backends call ``compile_fx`` themselves. Their results stay torch's own. This file counts such direct compiles, so that
users see them. All callers look up ``compile_fx`` when they call it. So this file replaces the function as soon as
torch has imported the function's module.

``torch.compile(...).aot_compile`` and ``caching_precompile`` do call this project's backend. But they save the
backend's result as one serialized AOTAutograd result (``serialize``). So this project leaves the compile of these
graphs to torch.

Private names: torch._inductor.compile_fx.compile_fx, torch._inductor.virtualized.V.aot_compilation,
torch._functorch.config.bundled_autograd_cache, torch._dynamo.config.caching_precompile.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from precompiled.core import interruptions
from precompiled.torch_internals.patches import Patches
from precompiled.version import switched_off

log = logging.getLogger("precompiled.route")

_MODULE = "torch._inductor.compile_fx"

_patches = Patches()
_count: Callable[[Any, bool], Callable[[], None]] | None = None


class _Inside(threading.local):
    # True in a compile that this project started or has counted already, because compile_fx calls itself.
    compiling = False


_inside = _Inside()


def install(count: Callable[[Any, bool], Callable[[], None]]) -> None:
    """Call ``count(module, is_ahead_of_time)`` before each direct compile, and the returned function after it.

    Idempotent.
    """
    global _count  # noqa: PLW0603
    _count = count
    if _MODULE in sys.modules:
        _replace()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def remove() -> None:
    """Stop counting. Idempotent."""
    global _count  # noqa: PLW0603
    _count = None
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    # Other code may have wrapped our function, so the function stays in place but counts nothing from now on.
    if not _patches.are_replaced():
        _patches.undo()


@contextmanager
def ours() -> Iterator[None]:
    """Within this context, count no compiles, because the graph that they compile already has a report."""
    before, _inside.compiling = _inside.compiling, True
    try:
        yield
    finally:
        _inside.compiling = before


def result_is_kept() -> bool:
    """Whether torch is about to save its backend's result."""
    asked = ((torch._functorch.config, "bundled_autograd_cache"), (torch._dynamo.config, "caching_precompile"))
    return any(getattr(module, name, False) for module, name in asked)


def _replace() -> None:
    module: object = sys.modules[_MODULE]
    if not _patches and hasattr(module, "compile_fx"):
        _patches.replace(module, "compile_fx", _counted)


def _counted(original: Callable[..., object]) -> Callable[..., Any]:
    @functools.wraps(original)
    def counted(model_: object, *args: object, **kwargs: object) -> Any:
        if _inside.compiling or _count is None or switched_off(os.environ):
            return original(model_, *args, **kwargs)
        done = None
        try:
            from torch._inductor.virtualized import V

            done = _count(model_, V.aot_compilation is True)
        except Exception as error:  # noqa: BLE001 - a setting that cannot be used, or a name that this torch lacks
            interruptions.pass_on(error)
            log.info("a compile is not counted: %s", error)
        with ours():
            compiled = original(model_, *args, **kwargs)
        if done is not None:
            done()
        return compiled

    return counted


class _Finder:
    """Calls ``_replace`` when the module ``compile_fx`` is imported.

    Finds no module itself, like bootstrap.py's finder for torch.
    """

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        if name != _MODULE:
            return None
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        for finder in list(sys.meta_path):
            find_spec = getattr(finder, "find_spec", None)
            spec = find_spec(name, path, target) if find_spec is not None else None
            if spec is not None:
                _then(spec.loader, _replace)
                return spec
        return None


def _then(loader: object, action: Callable[[], None]) -> None:
    """Call ``action`` after ``loader`` has executed its module, and restore the loader."""
    attributes, real = getattr(loader, "__dict__", None), getattr(loader, "exec_module", None)
    if real is None or not isinstance(attributes, dict):
        return  # the loader cannot be wrapped, so compiles of this process are not counted

    def exec_module(module: object) -> None:
        attributes.pop("exec_module", None)
        real(module)
        action()

    attributes["exec_module"] = exec_module
