"""Moves an artifact, which is compiled for ``cuda:0``, to the index of the GPU that its graph runs on.

The index occurs in five places: the text of Inductor's wrapper and of its Triton kernels, Inductor's pickled kernels,
the folder names of a bundle's Triton cache, the device of recorded CUDA graphs, and the random state's device. Machine
code and Triton's hashes contain no index. A moved artifact equals the code that torch generates for that index;
tests/gpu/test_device_index.py compares the two. Text with an index in an unknown position is refused, because it could
compute on the wrong GPU (docs/decisions/0035).

Private names: torch._inductor.output_code.CompiledFxGraph.{source_code, constants, device_idxs, _triton_bundle},
torch._inductor.triton_bundler.{TritonBundle, TritonKernelArtifacts, StaticallyLaunchedAutotuner},
torch._inductor.async_compile.CompiledTritonKernels.key,
torch._inductor.runtime.triton_heuristics.{CachingAutotuner.{device_props, triton_meta, compile_results},
StaticTritonCompileResult.compile_meta}, torch.utils._ordered_set.OrderedSet,
torch._functorch._aot_autograd.schemas.ViewAndMutationMeta.graphsafe_rng_state_index.
Checked on 2.11.0, 2.15.0.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch._inductor.async_compile import CompiledTritonKernels
from torch.utils._ordered_set import OrderedSet

from precompiled.core.errors import Bypass
from precompiled.torch_internals import code_edits

HOME = "cuda:0"

# Functions whose only argument is a GPU index. Each function is given by the last part of its name.
_TAKES_AN_INDEX = frozenset({"_DeviceGuard", "set_device", "get_raw_stream", "device", "synchronize", "current_stream"})
# The text of a Triton kernel (a string in the wrapper) contains the index only in this form.
_PROPERTIES = re.compile(r"(DeviceProperties\(type='cuda', index=)0(?=,)")
# An integer argument with one of these names may be a GPU index. If a function's name matches the pattern, each of its
# integer arguments may be a GPU index.
_LABELS = frozenset({"device", "device_index", "device_idx"})
_SUSPICIOUS = re.compile(r"cuda|device|stream|generator", re.IGNORECASE)


def move(bundle: Any, codes: Sequence[object], index: int) -> None:
    """Move a ``BundledAOTAutogradResult`` and its ``CompiledFxGraph``s, in place. Raises Bypass for unknown text.

    relocate.py moves the text of the backward's graph.
    """
    for code in codes:
        _move_code(code, index)
    meta = bundle.runtime_metadata
    if meta.graphsafe_rng_state_index is not None:
        meta.graphsafe_rng_state_index = index


def _move_code(code: Any, index: int) -> None:
    if any(constant.is_cuda for constant in (code.constants or {}).values()):
        # No known graph has a constant on a GPU.
        raise Bypass(f"the artifact holds a constant on {HOME}", code="device-index")
    before = _kernels(code.source_code)
    code.source_code = moved_text(code.source_code, index)
    keys = {
        CompiledTritonKernels.key(old): CompiledTritonKernels.key(new)
        for old, new in zip(before, _kernels(code.source_code), strict=True)
    }
    code.device_idxs = OrderedSet([index] * len(code.device_idxs))
    bundle = code._triton_bundle
    if bundle is None:
        return
    for launched in bundle.static_autotuners:
        kernel = launched.kernel
        kernel.device_props = kernel.device_props._replace(index=index)
        for meta in (kernel.triton_meta, *(result.compile_meta for result in kernel.compile_results)):
            meta["device"] = index
    try:
        code._triton_bundle = replace(
            bundle,
            kernel_artifacts=[replace(kernel, device=index) for kernel in bundle.kernel_artifacts],
            static_autotuners=[replace(one, cache_key=keys[one.cache_key]) for one in bundle.static_autotuners],
        )
    except KeyError:
        raise Bypass("the artifact has a Triton kernel that its code does not name", code="device-index") from None


def moved_text(text: str, index: int) -> str:
    """Rewrite Python code for ``cuda:0`` so that it uses ``cuda:index``. Raises Bypass for an index in an unknown
    position.
    """
    moved, places = f"cuda:{index}", []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and node.value == HOME:
            places.append((node, repr(moved)))
        elif isinstance(node, ast.Call):
            places += [(number, str(index)) for number in _indices(node)]
        elif isinstance(node, ast.Subscript) and _name(node.value).endswith("default_generators"):
            if not isinstance(node.slice, ast.Constant) or node.slice.value != 0:
                raise _unknown(node)
            places.append((node.slice, str(index)))
    try:
        edited = code_edits.replace_nodes(text, places)
    except code_edits.SpansLines as error:
        raise _unknown(error.node) from None
    return _PROPERTIES.sub(rf"\g<1>{index}", edited)


def _indices(call: ast.Call) -> Iterator[ast.Constant]:
    """Yield those arguments of a call that are the GPU index 0. Raises Bypass if another argument may be an index."""
    name = _name(call.func)
    last = name.rpartition(".")[2]
    given = [*((None, value) for value in call.args), *((keyword.arg, keyword.value) for keyword in call.keywords)]
    numbers = [(label, value) for label, value in given if isinstance(value, ast.Constant) and type(value.value) is int]
    if last in _TAKES_AN_INDEX:
        for label, value in numbers:
            if value.value != 0 or label not in (None, "index", "device"):
                raise _unknown(call)
            yield value
        return
    labels = {label for label, _ in numbers}
    if labels & _LABELS or (labels and _SUSPICIOUS.search(last) and not last.startswith("empty_strided")):
        raise _unknown(call)


def _unknown(node: ast.expr) -> Bypass:
    return Bypass(
        f"the artifact is for {HOME}, and cannot be moved: {ast.unparse(node)}",
        "Give each process its GPU with CUDA_VISIBLE_DEVICES",
        code="device-index",
    )


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return f"{_name(function.value)}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""


def _kernels(text: str) -> list[str]:
    """The sources of the Triton kernels in a wrapper, in their order."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return [ast.literal_eval(call.args[1]) for call in calls if _name(call.func) == "async_compile.triton"]
