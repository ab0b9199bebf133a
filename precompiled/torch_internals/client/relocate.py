"""Moves an artifact to the GPU and process groups of its graph. Artifacts are compiled for cuda:0 and numbered groups.

Private names: torch._functorch._aot_autograd.aot_autograd_result.BundledAOTAutogradResult.{compiled_fw, compiled_bw,
serialized_bw_module}, torch._functorch._aot_autograd.aot_autograd_result.SerializedGraphModule.args,
torch._inductor.output_code.CompiledFxGraph.source_code. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from precompiled.torch_internals.client import device_index
from precompiled.torch_internals.inductor import frozen_weights
from precompiled.torch_internals.ranks import group_names


def move(bundle: Any, device: str, groups: Sequence[str]) -> None:
    """Move a ``BundledAOTAutogradResult``, in place. Raises Bypass for unknown text.

    ``groups``: the names of the graph's process groups, in the order of the numbers that the artifact contains.
    """
    codes = [frozen_weights.code_of(part) for part in (bundle.compiled_fw, bundle.compiled_bw) if part is not None]
    if index := torch.device(device).index:
        device_index.move(bundle, codes, index)
        _edit_backward(bundle, lambda text: device_index.moved_text(text, index))
    if groups:
        for code in codes:
            code.source_code = group_names.moved_text(code.source_code, groups)
        _edit_backward(bundle, lambda text: group_names.moved_text(text, groups))


def _edit_backward(bundle: Any, edit: Callable[[str], str]) -> None:
    """Edit the text of the backward's graph, which compiled autograd traces."""
    backward = bundle.serialized_bw_module
    if backward is not None:
        state = backward.args[0]
        backward.args = ({**state, "_code": edit(state["_code"])}, *backward.args[1:])
