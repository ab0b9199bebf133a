"""The one device of a graph. With tensors that have no data: no GPU is needed to have them on one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode

from precompiled.core.errors import Bypass
from precompiled.graph import devices


def graph_of(target: Any, *args: Any, devices: list[str], method: bool = False, **kwargs: Any) -> torch.fx.GraphModule:
    """One node, whose input and value are on these devices."""
    graph = torch.fx.Graph()
    given = graph.placeholder("x")
    made = graph.call_method(target, (given, *args)) if method else graph.call_function(target, (given, *args), kwargs)
    graph.output((made,))
    with FakeTensorMode():
        for node, device in zip((given, made), devices, strict=True):
            node.meta["example_value"] = torch.empty(2, device=device)
    return torch.fx.GraphModule({}, graph)


def test_a_graph_of_one_index_is_that_of_a_worker() -> None:
    module = graph_of(torch.relu, devices=["cuda:3", "cuda:3"])
    inputs = [{"device": "cuda:3"}, {"device": "cpu"}]
    assert devices.device_of(module, [], inputs) == "cuda:3"
    told = devices.for_a_worker([inputs, {"x": ["device", "cuda:3"]}, "cuda:30"], "cuda:3")
    assert told == [[{"device": "cuda:0"}, {"device": "cpu"}], {"x": ["device", "cuda:0"]}, "cuda:30"]
    assert devices.for_a_client(told, "cuda:3") == [inputs, {"x": ["device", "cuda:3"]}, "cuda:30"]


def test_a_second_device_is_seen_though_only_a_number_names_it() -> None:
    module = graph_of("to", 1, devices=["cuda:0", "cuda:1"], method=True)
    with pytest.raises(Bypass) as refused:
        devices.device_of(module, [], [{"device": "cuda:0"}])
    assert refused.value.code == "several-devices"


def test_a_method_that_takes_a_device_is_that_device_and_not_the_current_one() -> None:
    module = graph_of("cuda", torch.device("cuda", 3), devices=["cpu", "cuda:3"], method=True)
    encoded = [["m", "cuda", [{"n": 0}, {"x": ["device", "cuda:3"]}], {}]]
    assert devices.device_of(module, [encoded], [{"device": "cpu"}]) == "cuda:3"


@pytest.mark.reason("device-index")
@pytest.mark.parametrize(
    ("target", "args", "kwargs"),
    [("to", (3,), {}), ("cuda", (3,), {}), (torch.zeros_like, (), {"device": 3})],
    ids=["to", "cuda", "device="],
)
def test_a_number_alone_is_refused(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    method = isinstance(target, str)
    module = graph_of(target, *args, devices=["cuda:3", "cuda:3"], method=method, **kwargs)
    with pytest.raises(Bypass) as refused:
        devices.device_of(module, [], [{"device": "cuda:3"}])
    assert refused.value.code == "device-index"
    module = graph_of(target, *args, devices=["cuda:0", "cuda:0"], method=method, **kwargs)
    assert devices.device_of(module, [], [{"device": "cuda:0"}]) == "cuda:0"  # it is 0 for a worker, too
