"""Loads an artifact's files into the callable that plain ``torch.compile`` would have returned.

AOTAutograd's own ``wrap_post_compile`` builds the runtime wrappers. This file replaces two steps that would start a
compiler or write to Inductor's cache. The generated module is executed from memory, and kernels are mapped from the
artifact (cpp_kernels.py).

Private names: torch._functorch._aot_autograd.aot_autograd_result.BundledAOTAutogradResult.{compiled_fw, compiled_bw,
sanitized_aot_config, runtime_metadata, wrap_post_compile},
torch._functorch._aot_autograd.schemas.ViewAndMutationMeta.bw_donated_idxs,
torch._inductor.output_code.CompiledFxGraph.{after_deserialization, current_callable, recursively_apply_fns,
compiled_fn_runner, source_code, cache_key}, torch._inductor.utils.BoxedBool,
torch._inductor.cudagraph_utils.BoxedDeviceIndex, torch._guards.{TracingContext, tracing}, torch._dynamo.disable.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import linecache
import types
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch._guards import TracingContext, tracing

from precompiled.core.program_data import CaptureState
from precompiled.torch_internals.client import autotune_results, relocate, triton_futures
from precompiled.torch_internals.graph import ambient_modes, input_metadata
from precompiled.torch_internals.inductor import cpp_kernels, cudagraph_parts, frozen_weights, retained_graphs
from precompiled.torch_internals.user_code import program_classes


def load_bundle(
    pickled: bytes,
    native: Mapping[str, tuple[Path, str]],
    program: CaptureState,
    name: str,
) -> Callable[..., object]:
    """Load a bundle. Returns the compiled callable, which takes the graph's inputs and returns its outputs as a tuple.

    - ``pickled``: the bundle. Unpickling runs code, so the caller has checked the bundle's origin (store/trust.py).
    - ``native``: maps a kernel's name to the file that contains the kernel, and to the file's SHA-256.
    - ``program``: the state at the capture. The load sets the program's modes, because they are thread-local state, and
      the load may run in another thread.
    - ``name``: the artifact's name in tracebacks and profiles.

    Raises Bypass if the artifact cannot be moved to this device and these groups (relocate.py).
    """
    from torch._inductor.cudagraph_utils import BoxedDeviceIndex
    from torch._inductor.utils import BoxedBool

    index = torch.device(program.device).index or 0
    bundle = program_classes.loads(pickled, program.classes)
    relocate.move(bundle, program.device, program.groups)
    # The worker compiled the backward before the first call of the backward showed whether it retains the graph. A call
    # that retains the graph needs copies of the buffers that the backward overwrites (retained_graphs.py).
    donated = bundle.runtime_metadata.bw_donated_idxs or []
    bundle.runtime_metadata.bw_donated_idxs = []
    for part, label, overwritten in ((bundle.compiled_fw, "forward", []), (bundle.compiled_bw, "backward", donated)):
        if part is not None:
            code = frozen_weights.code_of(part)
            autotune_results.keep_here(code)
            code.after_deserialization = types.MethodType(
                _executes_in_memory(f"<precompiled {name} {label}>", overwritten), code
            )
    # Use a separate tracing context, so that the load does not depend on the frame that Dynamo is compiling.
    context = TracingContext(input_metadata.new_fake_mode())
    taken: Callable[[tuple[Any, ...]], list[Any]] = list
    # The current GPU of this thread may not be the graph's GPU.
    there = torch.cuda.device(index) if index else nullcontext()
    ahead = cudagraph_parts.made_ahead() if program.cudagraphs else nullcontext()
    alone = triton_futures.of_this_thread()
    with there, ambient_modes.thread_local(program.modes), tracing(context), cpp_kernels.mapped(native), alone, ahead:
        if isinstance(bundle.compiled_fw.result, frozen_weights.Frozen):
            bundle.compiled_fw.result.bind(program.frozen)
            taken = bundle.compiled_fw.result.reordered
        boxed = bundle.wrap_post_compile(
            [],
            bundle.sanitized_aot_config,
            {
                "cudagraphs": BoxedBool(program.cudagraphs),
                "boxed_forward_device_index": BoxedDeviceIndex(None),
                "compile_region_name": None,
            },
        )

    def forward(*args: object) -> object:
        return boxed(taken(args))

    return torch._dynamo.disable(forward, reason="a compiled graph")


def _executes_in_memory(filename: str, overwritten: list[int]) -> Callable[..., str]:
    def after_deserialization(graph: Any, constants: Any) -> str:
        """Replace CompiledFxGraph's own method, which writes to Inductor's cache and imports from the cache."""
        module = types.ModuleType(f"precompiled_wrapper_{graph.cache_key}")
        module.__file__ = filename
        # Let tracebacks and profilers show the lines of the generated code.
        linecache.cache[filename] = (len(graph.source_code), None, graph.source_code.splitlines(True), filename)
        exec(compile(graph.source_code, filename, "exec"), vars(module))
        vars(module).update(constants.unwrap(graph))  # after the code, as PyCodeCache.load_by_key_path does
        graph.current_callable = retained_graphs.on_copies(module.call, overwritten) if overwritten else module.call
        graph.recursively_apply_fns = getattr(module, "recursively_apply_fns", None)
        graph.compiled_fn_runner = getattr(module, "runner", None)
        return filename

    return after_deserialization
