"""Routes torch.compile's backend "inductor" to this project, which can call the original backend.

``torch.compile(..., backend="inductor")``, the default, creates a ``torch._TorchCompileInductorWrapper``. The wrapper
holds mode= and options= as ``config``, and its ``__call__`` is Dynamo's backend. Replacing ``__call__`` on the class
routes every compiled function of the process, including functions that were compiled earlier. Undoing the replacement
restores all functions. This file also wraps ``__init__``, to register callbacks for Dynamo's traces. The rest of the
wrapper (equality, ``get_compiler_config``, ``reset``) stays torch's own.

Private names: torch._TorchCompileInductorWrapper.{__init__, __call__, config}.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any

import torch

from precompiled.core import bypassing, interruptions
from precompiled.core.errors import PrecompiledError
from precompiled.torch_internals import NEWEST, OLDEST, is_supported
from precompiled.torch_internals.client import bypassed_backend, first_trace, garbage_collection
from precompiled.torch_internals.inductor import direct_inductor_calls
from precompiled.torch_internals.patches import Patches

log = logging.getLogger("precompiled.route")

_patches = Patches()

Serve = Callable[[torch.fx.GraphModule, dict[str, Any], Callable[[], Any]], Any]
Leave = Callable[[torch.fx.GraphModule, Callable[[], Any]], Any]
WentAround = Callable[[Any, bool], Callable[[], None]]


def install(serve: Serve, leave: Leave, went_around: WentAround, at_first_trace: Callable[[], None]) -> None:
    """Start routing. Idempotent. Raises PrecompiledError on a torch version that is not supported.

    - ``serve``: takes a graph, the options of its torch.compile(), and a function that compiles the graph in process.
      Returns the graph's callable.
    - ``leave``: takes a graph that the program leaves to torch (bypassed_backend.py), and a function that compiles the
      graph in process.
    - ``went_around``: called if code calls Inductor directly (direct_inductor_calls.py).
    - ``at_first_trace``: called once, at the first trace.
    """
    if _patches:
        return
    wrapper = getattr(torch, "_TorchCompileInductorWrapper", None)
    if not is_supported(torch.__version__) or wrapper is None:
        oldest, newest = (".".join(map(str, version)) for version in (OLDEST, NEWEST))
        raise PrecompiledError(
            f"torch {torch.__version__} is not supported",
            f"Install a torch between {oldest} and {newest}; until then, torch.compile works without precompiled",
            code="unsupported-torch",
        )

    def make(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def made(self: object, *args: object, **kwargs: object) -> None:
            original(self, *args, **kwargs)
            if bypassing.is_active() and bypassed_backend.mark(self):
                return
            # torch.compile makes the wrapper before Dynamo traces, so the callbacks see the first trace. Registering
            # callbacks imports Dynamo, which torch.compile would import next anyway.
            try:
                garbage_collection.install()
                first_trace.install(at_first_trace)
            except Exception as error:  # noqa: BLE001 - torch.compile traces as usual without the callbacks
                interruptions.pass_on(error)
                log.info("Dynamo's traces cannot be observed: %s", error)

        return made

    _patches.replace(wrapper, "__call__", functools.partial(_routed, wrapper, serve, leave))
    _patches.replace(wrapper, "__init__", make)
    direct_inductor_calls.install(went_around)


def install_refusal(refuse: Callable[[Any], None]) -> None:
    """Call ``refuse`` with each graph that torch.compile passes to the backend "inductor". An exception of ``refuse``
    reaches the program.

    Call this function in processes where routing is impossible.
    """
    wrapper = getattr(torch, "_TorchCompileInductorWrapper", None)
    if _patches or wrapper is None:
        return

    def make(original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def refused(self: object, model_: object, inputs_: object, **kwargs: object) -> object:
            if type(self) is wrapper and isinstance(model_, torch.fx.GraphModule):
                refuse(model_)
            return original(self, model_, inputs_, **kwargs)

        return refused

    _patches.replace(wrapper, "__call__", make)


def remove() -> None:
    """Restore torch.compile's own backend. Idempotent."""
    if _patches:
        _patches.undo()
        direct_inductor_calls.remove()
        if "torch._dynamo.callback" in sys.modules:
            first_trace.remove()


def _routed(wrapper: object, serve: Serve, leave: Leave, original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def routed(self: Any, model_: object, inputs_: object, **kwargs: Any) -> object:
        def in_process() -> object:
            with garbage_collection.as_usual():
                return original(self, model_, inputs_, **kwargs)

        def reported() -> object:
            with direct_inductor_calls.ours():
                return in_process()

        if type(self) is bypassed_backend.BypassedBackend and isinstance(model_, torch.fx.GraphModule):
            return leave(model_, reported)
        # Serve only plain calls of torch's own wrapper. AOTInductor derives a class from the wrapper.
        patches = kwargs.get("config_patches") or {}
        if (
            type(self) is not wrapper
            or set(kwargs) - {"config_patches"}
            or not isinstance(model_, torch.fx.GraphModule)
        ):
            return in_process()
        return serve(model_, {**self.config, **patches}, reported)

    return routed
