"""Tests of the single device of a graph, with fake tensors, which need no GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode

from precompiled.core.errors import Bypass
from precompiled.graph import devices


def graph_of(target: Any, *args: Any, devices: list[str], method: bool = False, **kwargs: Any) -> torch.fx.GraphModule:
    """Return a graph with one node. ``devices``: the device of the node's input, and the device of its value."""
    graph = torch.fx.Graph()
    given = graph.placeholder("x")
    made = graph.call_method(target, (given, *args)) if method else graph.call_function(target, (given, *args), kwargs)
    graph.output((made,))
    with FakeTensorMode():
        for node, device in zip((given, made), devices, strict=True):
            node.meta["example_value"] = torch.empty(2, device=device)
    return torch.fx.GraphModule({}, graph)


def test_device_index_is_translated_for_the_worker_and_back() -> None:
    module = graph_of(torch.relu, devices=["cuda:3", "cuda:3"])
    inputs = [{"device": "cuda:3"}, {"device": "cpu"}]
    assert devices.device_of(module, [], inputs) == "cuda:3"
    for_worker = devices.for_a_worker([inputs, {"x": ["device", "cuda:3"]}, "cuda:30"], "cuda:3")
    assert for_worker == [[{"device": "cuda:0"}, {"device": "cpu"}], {"x": ["device", "cuda:0"]}, "cuda:30"]
    assert devices.for_a_client(for_worker, "cuda:3") == [inputs, {"x": ["device", "cuda:3"]}, "cuda:30"]


def test_second_device_named_by_a_number_is_detected() -> None:
    module = graph_of("to", 1, devices=["cuda:0", "cuda:1"], method=True)
    with pytest.raises(Bypass) as refused:
        devices.device_of(module, [], [{"device": "cuda:0"}])
    assert refused.value.code == "several-devices"


def test_explicit_device_argument_determines_the_device() -> None:
    module = graph_of("cuda", torch.device("cuda", 3), devices=["cpu", "cuda:3"], method=True)
    encoded = [["m", "cuda", [{"n": 0}, {"x": ["device", "cuda:3"]}], {}]]
    assert devices.device_of(module, [encoded], [{"device": "cpu"}]) == "cuda:3"


@pytest.mark.reason("device-index")
@pytest.mark.parametrize(
    ("target", "args", "kwargs"),
    [("to", (3,), {}), ("cuda", (3,), {}), (torch.zeros_like, (), {"device": 3})],
    ids=["to", "cuda", "device="],
)
def test_device_given_as_a_number_is_refused(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    method = isinstance(target, str)
    module = graph_of(target, *args, devices=["cuda:3", "cuda:3"], method=method, **kwargs)
    with pytest.raises(Bypass) as refused:
        devices.device_of(module, [], [{"device": "cuda:3"}])
    assert refused.value.code == "device-index"
    module = graph_of(target, *args, devices=["cuda:0", "cuda:0"], method=method, **kwargs)
    assert devices.device_of(module, [], [{"device": "cuda:0"}]) == "cuda:0"  # the worker uses index 0 too
