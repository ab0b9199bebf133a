"""Finds the device on which a graph runs. Renames the device for a worker, and back for a client.

A worker sees one GPU, as ``cuda:0``, so programs always name that device. So all ranks on GPUs of one kind share one
key and one compile. A client adapts the artifact to its GPU's index (torch_internals/client/device_index.py,
docs/decisions/0035).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from precompiled.core.errors import Bypass

if TYPE_CHECKING:
    from precompiled.core.program_data import InputData

IN_A_WORKER = "cuda:0"

# Inductor puts the counter of these loops on the CPU. The graph does not show the counter
# (torch/_inductor/fx_passes/post_grad.py, decompose_scan_to_while_loop).
_COUNTED = frozenset({"scan", "map_impl"})

# A graph may name a device by text, x.to("cuda"), or by a method, x.cuda().
_ACCELERATOR = re.compile(r"(cuda|xpu|mps|hpu|mtia|npu|privateuseone|xla)(:\d+)?")


def device_of(module: torch.fx.GraphModule, graph: list[list[Any]], inputs: Sequence[InputData]) -> str:
    """The device of a graph: ``"cpu"`` or ``"cuda:N"``. A graph on a GPU may have inputs on the CPU (scalars).

    ``graph`` and ``inputs``: the graph and inputs of ``module`` as plain data. Raises Bypass for several GPUs, for
    other accelerators, and for a GPU that the graph names by its number.
    """
    found = {_indexed(item["device"]) for item in inputs if "device" in item}
    _collect(graph, found)
    # A graph may also name a device by a number, x.to(1). Plain data does not show that the number is a device.
    found |= {str(value.device) for node in _nodes(module) for value in _tensors(_value(node))}
    accelerators = sorted(device for device in found if device not in ("cpu", "meta"))
    if not accelerators:
        return "cpu"
    if len(accelerators) > 1:
        raise Bypass(f"the graph uses several devices: {', '.join(accelerators)}", code="several-devices")
    (device,) = accelerators
    if not device.startswith("cuda"):
        raise Bypass(f"the graph runs on {device}", code="unsupported-device")
    if device != IN_A_WORKER and (node := next(filter(_has_a_number, _nodes(module)), None)) is not None:
        raise Bypass(
            f"the graph names {device} by its number: {node.format_node()}",
            'Write torch.device("cuda", index), or give each process its GPU with CUDA_VISIBLE_DEVICES',
            code="device-index",
        )
    return device


def uses_cpu(module: torch.fx.GraphModule, inputs: Sequence[InputData]) -> bool:
    """Whether any tensor of the graph is on the CPU, even a scalar in a graph on a GPU."""
    if any(getattr(node.target, "__name__", "") in _COUNTED for node in _nodes(module)):
        return True
    values = (value for node in _nodes(module) for value in _tensors(_value(node)))
    return any(item.get("device") == "cpu" for item in inputs) or any(value.device.type == "cpu" for value in values)


def for_a_worker(plain: Any, device: str) -> Any:
    """In a graph's plain data, replace ``device``, the client's GPU, by ``cuda:0``, the name that every worker uses."""
    return plain if device == "cpu" else _renamed(plain, device, IN_A_WORKER)


def for_a_client(plain: Any, device: str) -> Any:
    """In a graph's plain data, replace ``cuda:0``, the name that every worker uses, by ``device``, the client's GPU."""
    return plain if device == "cpu" else _renamed(plain, IN_A_WORKER, device)


def _renamed(plain: Any, old: str, new: str) -> Any:
    if old == new:
        return plain
    if isinstance(plain, str):
        return new if plain == old else plain
    if isinstance(plain, list):
        return [_renamed(item, old, new) for item in plain]
    if isinstance(plain, dict):
        return {name: _renamed(item, old, new) for name, item in plain.items()}
    return plain


def _collect(encoded: Any, found: set[str]) -> None:
    if isinstance(encoded, list):
        if len(encoded) >= 4 and encoded[0] == "f" and encoded[1][-1:] == ["_enter_autocast"]:
            return  # libraries use autocast("cuda", enabled=False) around CPU operators
        if len(encoded) >= 4 and encoded[0] == "m" and _ACCELERATOR.fullmatch(encoded[1]):
            if len(encoded[2]) == 1:  # x.cuda() without an index
                found.add(_indexed(encoded[1]))
            encoded = encoded[2:]
        for item in encoded:
            _collect(item, found)
    elif isinstance(encoded, dict):
        constant = encoded.get("x")
        if constant is not None:
            if constant[0] == "device":
                found.add(_indexed(constant[1]))
        else:
            for item in encoded.values():
                _collect(item, found)
    elif isinstance(encoded, str) and _ACCELERATOR.fullmatch(encoded):
        found.add(_indexed(encoded))


def _indexed(device: str) -> str:
    """Add the index to a device's name: ``"cuda"`` means the device that is current when the graph runs."""
    if device == "cuda" and torch.cuda.is_available():
        return f"cuda:{torch.cuda.current_device()}"
    return device if ":" in device or device in ("cpu", "meta") else f"{device}:0"


def _nodes(module: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            yield from part.graph.nodes


def _value(node: torch.fx.Node) -> object:
    """A node's fake value, from Dynamo or from a trace to ATen (torch_internals/client/graph_lowering.py)."""
    return node.meta.get("example_value", node.meta.get("val"))


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _has_a_number(node: torch.fx.Node) -> bool:
    """Whether a node may name a device only by an index. Renaming would miss this device."""
    if node.op not in ("call_function", "call_method"):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    takes_devices = name in ("to", "cuda") or "device" in name
    return type(node.kwargs.get("device")) is int or (takes_devices and any(type(item) is int for item in node.args))
