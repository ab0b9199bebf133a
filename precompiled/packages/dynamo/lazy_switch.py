"""Switches packages on where Dynamo is there, or else at the first ``torch.compile``: its import takes half a second.

Private names: torch._TorchCompileInductorWrapper.__init__, torch._TorchCompileWrapper.__init__.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any

import torch

from precompiled.torch_internals.client import garbage_collection
from precompiled.torch_internals.patches import Patches

log = logging.getLogger("precompiled.package")

_patches = Patches()
_WRAPPERS = ("_TorchCompileInductorWrapper", "_TorchCompileWrapper")
problem: str | None = None  # why packages are off although they were asked for


def install(switch_on: Callable[[], None]) -> None:
    """Call ``switch_on`` now, or when something is first compiled; idempotent."""
    if "torch._dynamo.convert_frame" in sys.modules:
        _switch(switch_on)
        return
    if not _patches:
        for name in _WRAPPERS:
            if hasattr(torch, name):
                _patches.replace(getattr(torch, name), "__init__", functools.partial(_first, switch_on))


def _first(switch_on: Callable[[], None], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if _patches:
            _patches.undo()
            _switch(switch_on)

    return init


def _switch(switch_on: Callable[[], None]) -> None:
    global problem  # noqa: PLW0603
    try:
        with (
            garbage_collection.seldom()
        ):  # what this import brings would make the first call's a collection of everything
            switch_on()
        problem = None
    except Exception as error:  # noqa: BLE001 - a private name that this torch lacks: packages are off, the rest works
        problem = f"{type(error).__name__}: {error}"
        log.warning("packages are off with torch %s: %s", torch.__version__, problem)


def remove() -> None:
    """Wait for the first compile no more; idempotent."""
    _patches.undo()
