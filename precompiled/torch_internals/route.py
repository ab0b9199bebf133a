"""Routes torch.compile's backend "inductor" to ours, and calls the real one.

``torch.compile(..., backend="inductor")``, which is the default, makes a ``torch._TorchCompileInductorWrapper`` that
holds mode= and options= as ``config``; its ``__call__`` is Dynamo's backend. Replacing that one method on the class
routes every compiled function of the process, also those made before, and taking it back restores them all. The
wrapper itself (its equality, ``get_compiler_config``, ``reset``) stays torch's own.

Private names: torch._TorchCompileInductorWrapper.{__init__, __call__, config}, torch._inductor.compile_fx.compile_fx.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from precompiled.errors import PrecompiledError
from precompiled.torch_internals import NEWEST, OLDEST, around, collection, first_trace, supported

log = logging.getLogger("precompiled.route")

_original: Callable[..., Any] | None = None
_original_init: Callable[..., None] | None = None


def install() -> None:
    """Route from now on; idempotent. Raises PrecompiledError on a torch that this was not checked on."""
    global _original, _original_init
    if _original is not None:
        return
    wrapper = getattr(torch, "_TorchCompileInductorWrapper", None)
    if not supported(torch.__version__) or wrapper is None:
        oldest, newest = (".".join(map(str, version)) for version in (OLDEST, NEWEST))
        raise PrecompiledError(
            f"torch {torch.__version__} is not supported",
            f"Install a torch between {oldest} and {newest}; until then torch.compile works as without precompiled",
            code="unsupported-torch",
        )
    original, original_init = wrapper.__call__, wrapper.__init__

    @functools.wraps(original_init)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        original_init(self, *args, **kwargs)
        # torch.compile makes it, and imports Dynamo next. Before the first trace, so not with the first graph.
        try:
            collection.install()
            first_trace.install()
        except Exception as error:  # noqa: BLE001 - torch.compile traces as ever
            log.info("Dynamo's traces are not seen: %s", error)

    @functools.wraps(original)
    def routed(self: Any, model_: Any, inputs_: Any, **kwargs: Any) -> Any:
        def in_process() -> Any:
            with collection.as_usual():
                return original(self, model_, inputs_, **kwargs)

        def reported() -> Any:
            with around.ours():
                return in_process()

        # Only torch's own wrapper, not what derives from it (AOTInductor's); and only calls of the plain form.
        patches = kwargs.get("config_patches") or {}
        if (
            type(self) is not wrapper
            or set(kwargs) - {"config_patches"}
            or not isinstance(model_, torch.fx.GraphModule)
        ):
            return in_process()
        # Imported on the first graph: switching on must cost nothing in programs that never compile.
        try:
            collection.install()
            from precompiled import backend
        except Exception as error:  # noqa: BLE001 - a private name that this torch lacks
            log.warning("torch.compile compiles in process: %s: %s", type(error).__name__, error)
            return in_process()
        return backend.compile_or_swap(model_, {**self.config, **patches}, reported)

    wrapper.__call__, wrapper.__init__ = routed, made
    _original, _original_init = original, original_init
    around.install(_went_around)


def remove() -> None:
    """Give torch.compile back its own backend; idempotent."""
    global _original, _original_init  # noqa: PLW0603
    if _original is not None:
        torch._TorchCompileInductorWrapper.__call__ = _original
        torch._TorchCompileInductorWrapper.__init__ = _original_init
        _original = _original_init = None
        around.remove()
        if "torch._dynamo.callback" in sys.modules:
            first_trace.remove()


def _went_around(module: Any, ahead_of_time: bool) -> Callable[[], None]:
    from precompiled import backend

    return backend.went_around(module, ahead_of_time)


def inductor_options(mode: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """What torch.compile makes of mode= and options=; raises as torch.compile does for unknown ones."""
    return dict(torch._TorchCompileInductorWrapper(mode, options, None).config)


def compile_in_process(
    module: torch.fx.GraphModule, inputs: list[Any], options: Mapping[str, Any]
) -> Callable[..., Any]:
    """Exactly what plain torch.compile does with a graph."""
    from torch._inductor.compile_fx import compile_fx

    with collection.as_usual(), around.ours():
        return compile_fx(module, inputs, config_patches=dict(options))  # type: ignore[no-any-return, unused-ignore]
