"""Tests of graphs on `cuda:1` and higher.

GPUs of one kind share a key and an artifact. A client adapts the artifact's code to the index of its GPU.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from support_compiles import compiled
from support_graphs import captured
from support_host import Host
from test_cuda import empty_caches, states

from precompiled.core.errors import Bypass
from precompiled.graph import capture, key
from precompiled.torch_internals.client import relocate as moves
from precompiled.torch_internals.inductor import frozen_weights
from precompiled.torch_internals.user_code import program_classes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT TESTED ON A GPU: torch.cuda.is_available() is False"),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NOT TESTED: there is one GPU"),
]


class Net(torch.nn.Module):
    def __init__(self, device: str) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(64, 128),
            torch.nn.GELU(),
            torch.nn.LayerNorm(128),
            torch.nn.Dropout(0.1),
            torch.nn.Linear(128, 64),
            torch.nn.Softmax(-1),
        )
        self.to(device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def net(device: str) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    return Net(device), [torch.randn(16, 64, device=device, requires_grad=True)]


def made_inside(device: str) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """Returns a function that creates tensors and random numbers, calls an operator of torch, and copies to the CPU."""

    def compute(x: torch.Tensor) -> Any:
        ramp = torch.arange(64, device=x.device).float() + torch.tensor([2.0, 3.0], device=x.device).sum()
        noise = torch.randn(64, device=x.device) + torch.rand_like(x)
        return x * ramp + noise, x.sort().values, torch.cumsum(x, 0).sum().cpu(), torch.linalg.qr(x @ x.T)

    return compute, [torch.randn(16, 64, device=device)]


def an_input_changed(device: str) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    def compute(x: torch.Tensor, running: torch.Tensor) -> Any:
        running.mul_(0.9).add_(x.mean(0))
        return torch.nn.functional.batch_norm(x, running, running.abs() + 1, training=True)

    return compute, [torch.randn(16, 64, device=device), torch.zeros(64, device=device)]


PROGRAMS = [net, made_inside, an_input_changed]


def program_of(make: Callable[..., Any], device: str, **options: Any) -> capture.SerializedGraph:
    torch.manual_seed(0)
    torch._dynamo.reset()
    function, inputs = make(device)
    return captured(function, *inputs, **options).program


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_key_does_not_depend_on_the_device_index(make: Callable[..., Any]) -> None:
    first, second = (program_of(make, device) for device in ("cuda:0", "cuda:1"))
    assert (first.device, second.device) == ("cuda:0", "cuda:1")
    assert key.key(first.sections) == key.key(second.sections)
    with torch.cuda.device(1):
        assert key.key(program_of(make, "cuda:1").sections) == key.key(first.sections)
    text = json.dumps(capture.parse(second.to_bytes()))
    assert "cuda:1" not in text


@pytest.mark.parametrize("options", [{}, {"max_autotune_pointwise": True}], ids=["default", "max-autotune-pointwise"])
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_moved_code_equals_code_that_torch_generates_for_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Any], options: dict[str, Any]
) -> None:
    for name, value in empty_caches(tmp_path).items():
        monkeypatch.setenv(name, value)
    there = program_of(make, "cuda:1", options=options)
    moved = bundle_of(capture.parse(there.to_bytes()))
    codes = [frozen_weights.code_of(part) for part in (moved.compiled_fw, moved.compiled_bw) if part is not None]
    moves.move(moved, "cuda:1", ())
    # The expected code, which torch generates for a graph that names cuda:1.
    made = bundle_of(capture.devices.for_a_client(capture.parse(there.to_bytes()), "cuda:1"))
    expected = [frozen_weights.code_of(part) for part in (made.compiled_fw, made.compiled_bw) if part is not None]
    assert len(codes) == len(expected)
    for ours, torchs in zip(codes, expected, strict=True):
        assert normal(ours.source_code) == normal(torchs.source_code)
        assert list(ours.device_idxs) == list(torchs.device_idxs) == [1]
        assert launched(ours) == launched(torchs)
        assert {kernel.device for kernel in ours._triton_bundle.kernel_artifacts} <= {1}
    if made.serialized_bw_module is not None:
        assert moved.serialized_bw_module.args[0]["_code"] == made.serialized_bw_module.args[0]["_code"]
    assert moved.runtime_metadata.graphsafe_rng_state_index == made.runtime_metadata.graphsafe_rng_state_index


def bundle_of(program: dict[str, Any]) -> Any:
    return program_classes.loads(compiled(program).bundle, {})


def normal(code: str) -> str:
    """Returns the code without what varies between compiles: comments, and the numbers in names of streams."""
    return ast.dump(ast.parse(code.replace("stream0", "stream1")))


def launched(code: Any) -> list[Any]:
    found = []
    for one in code._triton_bundle.static_autotuners:
        results = [{**result.compile_meta, "configs": None} for result in one.kernel.compile_results]
        found.append((one.cache_key, one.kernel.device_props, one.kernel.triton_meta["device"], str(results)))
    return sorted(found, key=str)


@pytest.mark.reason("device-index")
def test_device_named_by_a_number_is_refused() -> None:
    with pytest.raises(Bypass) as refused:
        captured(lambda x: torch.zeros(4, device="cpu").cuda(1) + x, torch.randn(4, device="cuda:1"))
    assert refused.value.code == "device-index"


def test_second_device_named_by_a_number_is_refused() -> None:
    with pytest.raises(Bypass) as refused:
        captured(lambda x: x.to(1) * 2, torch.randn(4, device="cuda:0"))
    assert refused.value.code == "several-devices"


# ---------------------------------------------------------------- clients with a daemon


def events(pid: int) -> list[dict[str, Any]]:
    log = Path(os.environ["CUDA_MADE_UP_STATE"]) / "log.jsonl"
    return [event for event in map(json.loads, log.read_text().splitlines()) if event["pid"] == pid]


def runs_on(index: int, result: dict[str, Any]) -> None:
    if "CUDA_MADE_UP_STATE" in os.environ:
        devices = {event["device"] for event in events(result["pid"]) if event["event"] in ("launch", "load")}
        assert devices == {index}


@pytest.mark.parametrize("training", [False, True], ids=["infer", "train"])
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_one_artifact_serves_each_index(host: Host, tmp_path: Path, mode: str | None, training: bool) -> None:
    spec = {"model": "mlp", "training": training, "compile": {"mode": mode}}
    # The first client's graph is on cuda:1 and is compiled. The graphs of the next clients hit. These graphs are on
    # cuda:0, then on cuda:1 while cuda:0 is the current device, then on cuda:1 while cuda:1 is the current device.
    ranks = [("cuda:1", 1), ("cuda:0", None), ("cuda:1", None), ("cuda:1", 1)]
    keys = set()
    for number, (device, current) in enumerate(ranks):
        asked = {**spec, "device": device, "current": current}
        result = host.run(asked, env=empty_caches(tmp_path / str(number)))
        assert states(result["first"]) == {("compiled", "hit") if number else ("pending", None)}
        assert states(result["reports"]) == {("compiled", "hit" if number else "swap")}, result["reports"]
        assert result["compiles"] == 0
        assert number == 0 or result["started"] == []
        keys |= {graph["key"] for graph in result["reports"]}
        runs_on(int(device[-1]), result)
    assert len(keys) == 1


def test_ranks_that_start_at_once_compile_each_graph_once(host: Host, tmp_path: Path) -> None:
    host.start_daemon()
    spec = {"model": "mlp", "training": True}
    ranks = [
        host.start({**spec, "device": f"cuda:{rank}", "current": rank}, empty_caches(tmp_path / str(rank)))
        for rank in (0, 1)
    ]
    results = [rank.result() for rank in ranks]
    graphs = [graph for result in results for graph in result["reports"]]
    assert {graph["state"] for graph in graphs} == {"compiled"}
    assert host.stats().compiled == len({graph["key"] for graph in graphs}) == len(graphs) / 2
    for rank, result in enumerate(results):
        assert result["compiles"] == 0
        runs_on(rank, result)
