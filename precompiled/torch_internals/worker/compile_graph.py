"""Compiles a captured graph in a worker, into the pickled result of AOTAutograd and Inductor.

The worker runs torch's own ``compile_fx``, so the compiled code equals that of plain ``torch.compile``. AOTAutograd's
*bundle* (torch/_functorch/_aot_autograd/aot_autograd_result.py) contains forward, backward and the runtime wrappers.

This file also calls the method ``serialize`` of compile_fx's result.

Private names: torch._inductor.compile_fx.{compile_fx, compile_fx_inner}, torch._inductor.config.compile_threads,
torch._guards.{TracingContext, tracing}, torch._functorch.config.{patch, bundled_autograd_cache,
force_non_lazy_backward_lowering, bypass_autograd_cache_key, autograd_cache_allow_custom_autograd_functions,
enable_autograd_cache, strict_autograd_cache},
torch._functorch._aot_autograd.autograd_cache.AOTAutogradCache._write_to_local_cache,
torch._dispatch.python.enable_python_dispatcher, torch._dynamo.source.LocalSource,
torch._dynamo.symbolic_convert.TensorifyState.force_specializations, torch._dynamo.exc.TensorifyScalarRestartAnalysis,
torch.fx.GraphModule._param_name_to_source, torch.fx.GraphModule.meta["dynamo_compile_id"],
torch.fx.Node._dynamo_source, torch.fx.Node.meta["example_value"], torch.fx.Node.meta["tensor_dict"].
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch._functorch.config
import torch.fx
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._dynamo.source import LocalSource
from torch._dynamo.symbolic_convert import TensorifyState
from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
from torch._guards import TracingContext, tracing
from torch._inductor.compile_fx import compile_fx, compile_fx_inner

from precompiled.core.errors import CompileFailed
from precompiled.torch_internals.graph import ambient_modes, compiler_config, graph_codec, input_metadata
from precompiled.torch_internals.graph.symbolic_sizes import is_size_input, produced_guards, size_values
from precompiled.torch_internals.inductor import (
    cudagraph_parts,
    direct_inductor_calls,
    frozen_weights,
    retained_graphs,
)
from precompiled.torch_internals.patches import Patches
from precompiled.torch_internals.ranks import device_meshes, dtensor_state, rank_dependence
from precompiled.torch_internals.user_code import program_classes
from precompiled.torch_internals.worker import (
    compile_phases,
    gpu_memory,
    index_strides,
    kernel_units,
    libdevice,
    no_measurements,
    static_launchers,
    triton_files,
)
from precompiled.torch_internals.worker.kernel_units import KernelCollector

if TYPE_CHECKING:
    from precompiled.core.program_data import InputData, InputsData, ProgramData

_ALIASED = "an input that the graph changes shares its memory with another input"


@dataclass(frozen=True)
class CompileResult:
    """The result of ``compile_graph``.

    ``bundle``: AOTAutograd's bundle, pickled. ``kernels``: builds the C++ kernels that the bundle calls.
    """

    bundle: bytes
    kernels: KernelCollector
    has_backward: bool
    guards: str
    any_place: bool  # whether the result is valid for every rank of the graph's meshes
    undecided: int  # choices that would need a measured time, on a device that cannot measure


class _ExampleValues(torch.fx.Interpreter):
    """Sets each node's ``example_value`` as Dynamo does, because Inductor's pre-grad passes read it."""

    def run_node(self, node: torch.fx.Node) -> object:
        result = super().run_node(node)
        node.meta["example_value"] = result
        return result


@gpu_memory.given_back()
def compile_graph(
    module: torch.fx.GraphModule,
    inputs: InputsData,
    hints: list[int],
    floats: list[float],
    weights: Sequence[torch.Tensor] = (),
    on_rank_read: Callable[[], None] = lambda: None,
    progress: compile_phases.ProgressReceiver | None = None,
    find_kernels: kernel_units.FindKernels = lambda names: (),
) -> CompileResult:
    """Compile the forward, and the backward if an input requires a gradient. Raises torch's errors, or CompileFailed.

    The C++ compilers may still run when this function returns (``CompileResult.kernels``).

    The caller has applied the program's modes and configuration.

    - ``weights``: the values of the last inputs, for freezing.
    - ``on_rank_read``: called when the compile first reads this rank's coordinates in the graph's meshes. The result is
      then valid for these coordinates only.
    - ``progress``: receives the number of built kernels, and a phase when only the C++ compilers still run.
    - ``find_kernels``: finds kernels that need no build.
    """
    progress = progress or compile_phases.IgnoredProgress()
    context = TracingContext(input_metadata.new_fake_mode())
    classes = program_classes.create_classes(inputs.get("classes", ()))
    asked = rank_dependence.RankReads(on_rank_read)
    found_meshes = device_meshes.create_meshes(inputs, asked)
    with (
        rank_dependence.answering(asked) if found_meshes else nullcontext(),
        dtensor_state.applied(inputs.get("dtensors")),
        tracing(context),
        _serializable(),
        kernel_units.collected(progress.kernels, find_kernels, progress.spans) as collector,
        frozen_weights.collected(weights),
        index_strides.read_off(),
        no_measurements.choices() as choices,
        libdevice.taken_back(),
        static_launchers.kept(),
        cudagraph_parts.made_ahead(),
    ):
        compiled, symints = _compile(module, inputs, hints, floats, context, classes, found_meshes, weights)
        _refuse_input_guards(context)
        serialize = getattr(compiled, "serialize", None)
        if serialize is None:
            raise CompileFailed("torch's result cannot be stored", code="not-serializable")
        bundle = serialize()
        if isinstance(bundle.compiled_fw.result, frozen_weights.Frozen):
            bundle.compiled_fw.result.settle(len(inputs["args"]) - len(weights))
        for part in filter(None, (bundle.compiled_fw, bundle.compiled_bw)):
            triton_files.drop_texts(frozen_weights.code_of(part))
            device_meshes.refuse_ranks(found_meshes, frozen_weights.code_of(part).source_code)
        # The client itself checks the guards against the sizes of each call (torch_internals/graph/symbolic_sizes.py).
        guards, bundle.guards_expr = produced_guards(symints, size_values(inputs, hints)), None
    shares = any("shares" in item for item in inputs["args"])
    if shares and any(info.mutates_data or info.mutates_metadata for info in bundle.runtime_metadata.input_info):
        # AOTAutograd's result depends on which inputs are views of each other, and Dynamo has no guards for this.
        raise CompileFailed(_ALIASED, code="aliased-mutation")
    try:
        pickled = program_classes.dumps(bundle, classes)
    except Exception as error:
        raise CompileFailed(f"the result cannot be pickled: {error}", code="not-serializable") from error
    collector.all_named()
    progress.phase("C++ compilers")
    return CompileResult(pickled, collector, bundle.compiled_bw is not None, guards, not asked.yes, choices.undecided)


def _refuse_input_guards(context: TracingContext) -> None:
    added = context.guards_context.aotautograd_guards
    if added:
        raise CompileFailed(f"AOTAutograd added guards on its inputs: {added}", code="aotautograd-guards")


def compile_here(
    program: ProgramData, classes: program_classes.Classes, found_meshes: Sequence[object]
) -> tuple[Callable[..., Any], str]:
    """Compile a captured graph in a client that gets no artifact, for this process alone.

    Returns the callable and the guards on its sizes (symbolic_sizes.guard_check). Raises torch's errors, or
    CompileFailed.
    """
    context = TracingContext(input_metadata.new_fake_mode())
    threads = torch._inductor.config.compile_threads or 1
    with (
        ambient_modes.thread_local(program["modes"]),
        compiler_config.applied(program["configs"], threads),
        tracing(context),
        direct_inductor_calls.ours(),
        cudagraph_parts.made_ahead(),
        # The backward is lowered now, because the guards that it adds must be known before the first call.
        # ``inner_compile`` lets a later call retain the graph. AOTAutograd's cache is off, because it would bypass
        # ``inner_compile``.
        torch._functorch.config.patch(force_non_lazy_backward_lowering=True, enable_autograd_cache=False),
    ):
        compiled, symints = _compile(
            graph_codec.decode(program["graph"]),
            program["inputs"],
            program["hints"],
            program["floats"],
            context,
            classes,
            found_meshes,
            inner_compile=retained_graphs.inner_compile,
        )
    _refuse_input_guards(context)
    return compiled, produced_guards(symints, size_values(program["inputs"], program["hints"]))


def _compile(
    module: torch.fx.GraphModule,
    inputs: InputsData,
    hints: list[int],
    floats: list[float],
    context: TracingContext,
    classes: program_classes.Classes,
    found_meshes: Sequence[object],
    weights: Sequence[torch.Tensor] = (),
    inner_compile: Callable[..., object] = compile_fx_inner,
) -> tuple[Any, list[torch.SymInt]]:
    """The result of compile_fx, and the symbolic sizes among the graph's inputs."""
    mode = context.fake_mode
    assert mode is not None
    sizes = input_metadata.size_maker(inputs, hints, floats, mode)
    # The example run gets its own inputs, because a graph may change an input's metadata in place.
    assert mode.shape_env is not None
    # Sizes that only a run determines (nonzero, item) get new symbols when AOTAutograd traces. The example run uses
    # torch's Python dispatcher, as Dynamo does, because some operators accept symbolic sizes only in their Python
    # decomposition.
    with mode, enable_python_dispatcher(), mode.shape_env.ignore_fresh_unbacked_symbols():
        examples = input_metadata.make_inputs(inputs, sizes, mode, classes, found_meshes)
        before = [_version(value) for value in examples]
        _ExampleValues(module).run(*examples)
    # AOTAutograd sometimes cannot build the tensor for a storage (set_) whose size is a symbol.
    aliased = any(
        "shares" in item and type(item["storage"]) is not int and _version(value) != version
        for value, item, version in zip(examples, inputs["args"], before, strict=True)
    )
    made = input_metadata.make_inputs(inputs, sizes, mode, classes, found_meshes)
    _dress_as_dynamos(module, made, inputs["args"])
    if weights:
        made = made[: len(made) - len(weights)]
        frozen_weights.hold(module, weights)
    fixed = set(TensorifyState.force_specializations)
    try:
        compiled = compile_fx(module, made, inner_compile=inner_compile)
    except TensorifyScalarRestartAnalysis as error:
        # Without this reset, the floats of the next graph would also be fixed. In a client, the reset keeps the floats
        # that Dynamo has fixed.
        TensorifyState.force_specializations = fixed
        raise CompileFailed("it is valid for only one value of a float argument", code="fixed-float") from error
    except Exception as error:
        # With aliased inputs, plain torch.compile may succeed, so the error does not count as torch's own.
        if not aliased:
            raise
        raise CompileFailed(_ALIASED, code="aliased-mutation") from error
    if sizes.fixed_floats():
        raise CompileFailed("it is valid for only some values of a float argument", code="fixed-float")
    return compiled, [value for value, item in zip(made, inputs["args"], strict=False) if is_size_input(item)]


def _version(value: object) -> int:
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else 0


def _dress_as_dynamos(
    module: torch.fx.GraphModule, inputs: list[torch.Tensor], described_inputs: Sequence[InputData]
) -> None:
    """Set the attributes that AOTAutograd reads from Dynamo's graphs (_try_get_metadata_from_dynamo)."""
    module.meta["dynamo_compile_id"] = "precompiled"
    module._param_name_to_source = {}
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node, value, described in zip(placeholders, inputs, described_inputs, strict=True):
        node.meta["example_value"] = value
        if "flags" in described:
            node.meta["tensor_dict"] = dict(described["flags"])
        node._dynamo_source = LocalSource(node.name)


@contextmanager
def _serializable() -> Iterator[None]:
    """Make AOTAutograd return one bundle with the backward, even for graphs that its own cache would refuse."""
    settings = {
        "enable_autograd_cache": True,
        "bundled_autograd_cache": True,
        "force_non_lazy_backward_lowering": True,
        "bypass_autograd_cache_key": True,
        "autograd_cache_allow_custom_autograd_functions": True,
        "strict_autograd_cache": False,
    }
    with torch._functorch.config.patch(settings), Patches() as patches:
        # Otherwise AOTAutograd would write a copy of its result under a random name (bypass_autograd_cache_key), and no
        # process would read the copy.
        patches.replace(AOTAutogradCache, "_write_to_local_cache", lambda _: lambda key, content: None)
        yield
