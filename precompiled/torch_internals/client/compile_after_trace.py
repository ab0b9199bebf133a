"""Compiles a graph in process after Dynamo's trace has ended, and raises torch's own errors.

The client compiles the captured program, as a worker does (compile_graph.compile_here). If this compile fails, the
capture may be at fault, so the client compiles the graph as Dynamo gave it (docs/decisions/0018). Errors of the second
compile have the form that Dynamo gives to backend errors (torch/_dynamo/output_graph.py, call_user_compiler).

Private names: torch._guards.{TracingContext, tracing}, torch._dynamo.exc.{BackendCompilerFailed, ShortenTraceback,
SkipFrame, TensorifyScalarRestartAnalysis, exceptions_allowed_to_be_fallback}, torch._dynamo.config.suppress_errors,
torch.utils._python_dispatch._disable_current_modes,
torch._inductor.config.compile_threads, torch.fx.Node._dynamo_source, torch.fx.GraphModule._param_name_to_source,
torch.fx.Node.meta["example_value"], torch._subclasses.fake_tensor.FakeTensor.fake_mode.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import functools
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.fx
from torch._dynamo import exc
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from precompiled.torch_internals import version_tuple
from precompiled.torch_internals.client import inductor_backend
from precompiled.torch_internals.graph import ambient_modes, compiler_config, input_metadata

if TYPE_CHECKING:
    from precompiled.core.program_data import ProgramData

# The logger through which plain torch.compile warns about suppressed errors.
_dynamos_log = logging.getLogger("torch._dynamo.convert_frame")

# After these exceptions Dynamo continues in another way (a graph break, a retrace, an eager frame) and raises nothing.
_GOES_ON = (exc.TensorifyScalarRestartAnalysis, exc.SkipFrame, *exc.exceptions_allowed_to_be_fallback)
# Exceptions that Dynamo does not wrap in BackendCompilerFailed. Torch 2.11 wraps IndexError.
_AS_THEY_ARE = (exc.ShortenTraceback, *((IndexError,) if version_tuple(torch.__version__) > (2, 11) else ()))


_Made = TypeVar("_Made")


def apart(compile: Callable[..., _Made], device: str) -> Callable[..., _Made]:
    """Wrap ``compile`` so that it does not change the program's random state, and runs outside the program's modes.
    Dynamo does the same.

    A compile measures kernels on random tensors, which must not change the numbers that the program draws next. The
    program's modes (``FlopCounterMode``) must not see the compile.
    """

    @functools.wraps(compile)
    def compiled(*args: object, **options: object) -> _Made:
        state, devices = random.getstate(), [] if device == "cpu" else [torch.device(device)]
        try:
            with torch.random.fork_rng(devices=devices), _disable_current_modes():
                return compile(*args, **options)
        finally:
            random.setstate(state)

    return compiled


@dataclass(frozen=True)
class Given:
    """A graph as Dynamo gave it. ``options`` are the options of its torch.compile() call."""

    name: str
    module: torch.fx.GraphModule
    options: Mapping[str, object]

    def compile(self, program: ProgramData) -> Callable[..., Any] | None:
        """Compile as plain torch.compile does, and raise its errors.

        Returns None if the result is valid for only some inputs.
        """
        module = copy_graph(self.module)
        values = [node.meta["example_value"] for node in module.graph.nodes if node.op == "placeholder"]
        mode = next((value.fake_mode for value in values if isinstance(value, FakeTensor)), None)
        context = TracingContext(mode or input_metadata.new_fake_mode())
        threads = torch._inductor.config.compile_threads or 1
        with (
            ambient_modes.thread_local(program["modes"]),
            compiler_config.applied(program["configs"], threads),
            tracing(context),
        ):
            compiled = inductor_backend.compile_in_process(module, values, self.options)
        symbolic = any(isinstance(value, torch.SymInt) for value in values)
        return None if symbolic or context.guards_context.aotautograd_guards else compiled


def copy_graph(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return a copy of the graph that shares its tensors.

    A compile may change the copy while the program runs the original eagerly.
    """
    held = {
        node.target: copy_graph(value) if isinstance(value, torch.fx.GraphModule) else value
        for node in module.graph.nodes
        if node.op == "get_attr" and (value := getattr(module, node.target, None)) is not None
    }
    graph = torch.fx.Graph()
    nodes: dict[torch.fx.Node, torch.fx.Node] = {}
    graph.output(graph.graph_copy(module.graph, nodes))
    copy = torch.fx.GraphModule(held, graph)
    copy.meta = dict(module.meta)
    if hasattr(module, "_param_name_to_source"):
        copy._param_name_to_source = module._param_name_to_source
    for before, after in nodes.items():
        if hasattr(before, "_dynamo_source"):
            after._dynamo_source = before._dynamo_source
    return copy


class _Inductor:
    __name__ = "inductor"  # the backend name in plain torch.compile's errors


def raised_by_dynamo(name: str, error: Exception) -> Exception | None:
    """The exception that the program gets if the backend raises ``error``. None if Dynamo handles the error and
    continues.
    """
    if isinstance(error, _GOES_ON):
        return None
    if torch._dynamo.config.suppress_errors:
        _dynamos_log.warning("WON'T CONVERT %s", name, exc_info=error)
        return None
    if isinstance(error, _AS_THEY_ARE):
        return error
    return exc.BackendCompilerFailed(_Inductor(), error, None).with_traceback(error.__traceback__)
