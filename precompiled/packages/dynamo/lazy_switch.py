"""Switches packages on if Dynamo is imported, or else at the first ``torch.compile``.

Packages import Dynamo, which takes half a second, so ``import precompiled`` must not import Dynamo.

Private names: torch._TorchCompileInductorWrapper.__init__, torch._TorchCompileWrapper.__init__. Checked on 2.11.0,
2.13.0, 2.15.0.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any

import torch

from precompiled.core import interruptions
from precompiled.torch_internals.client import garbage_collection
from precompiled.torch_internals.patches import Patches

log = logging.getLogger("precompiled.package")

_patches = Patches()
_WRAPPERS = ("_TorchCompileInductorWrapper", "_TorchCompileWrapper")
problem: str | None = None  # why packages are off although the settings enable them


def install(switch_on: Callable[[], None]) -> None:
    """Call ``switch_on`` now if Dynamo is imported, else at the first ``torch.compile``. Idempotent."""
    if "torch._dynamo.convert_frame" in sys.modules:
        _switch(switch_on)
        return
    if not _patches:
        for name in _WRAPPERS:
            if hasattr(torch, name):
                _patches.replace(getattr(torch, name), "__init__", functools.partial(_first, switch_on))


def _first(switch_on: Callable[[], None], original: Callable[..., Any]) -> Callable[..., object]:
    @functools.wraps(original)
    def init(self: object, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        if _patches:
            _patches.undo()
            _switch(switch_on)

    return init


def _switch(switch_on: Callable[[], None]) -> None:
    global problem  # noqa: PLW0603
    try:
        # The import creates many objects. Without ``seldom``, the first call would run a full garbage collection.
        with garbage_collection.seldom():
            switch_on()
        problem = None
    except Exception as error:  # noqa: BLE001 - if this torch lacks a private name, only packages are off
        interruptions.pass_on(error)
        problem = f"{type(error).__name__}: {error}"
        log.warning("packages are off with torch %s: %s", torch.__version__, problem)


def remove() -> None:
    """Stop waiting for the first compile. Idempotent."""
    _patches.undo()
