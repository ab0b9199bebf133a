"""Tests that the key of a graph does not depend on CPU and C++ compiler if all its values are on a GPU."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support_cpu_backward import with_a_backward_on_the_cpu
from support_graphs import captured
from torch._higher_order_ops.map import map as map_operator
from torch._higher_order_ops.scan import scan

from precompiled import compiler, wire
from precompiled.graph.environment import device_of_a_worker
from precompiled.store.artifacts import Store

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT TESTED ON A GPU: torch.cuda.is_available() is False"),
]
OF_THE_HOST = {"cpu", "compiler"}


def facts(function: Callable[..., Any], *inputs: torch.Tensor) -> set[str]:
    sections = captured(function, *inputs).program.sections
    found = set(json.loads(sections["environment"]))
    # Like the CPU, the number of threads is in the key only if the graph may have CPU kernels.
    threads = torch.get_num_threads() if found >= OF_THE_HOST else 0
    assert json.loads(sections["modes"])["threads"] == threads
    return found


def test_cpu_is_in_the_key_only_if_a_value_is_on_it() -> None:
    x = torch.randn(8, device="cuda")
    assert not OF_THE_HOST & facts(lambda x: x.softmax(-1) + 1, x)
    assert facts(lambda x, y: x * y, x, torch.tensor(2.0)) >= OF_THE_HOST
    assert facts(lambda x: x + torch.arange(8).to("cuda"), x) >= OF_THE_HOST
    assert facts(lambda x: x + torch.tensor(0.5), x) >= OF_THE_HOST
    assert facts(lambda x: x.cpu(), x) >= OF_THE_HOST
    assert facts(lambda x: x * 2, x.cpu()) >= OF_THE_HOST
    # Inductor keeps the step counters of scan and map on the CPU.
    zero = torch.zeros((), device="cuda")
    assert facts(lambda x, zero: scan(lambda carry, y: (carry + y, carry * y), zero, x), x, zero) >= OF_THE_HOST
    assert facts(lambda x: map_operator(lambda y: y.sin(), x), x) >= OF_THE_HOST


@pytest.mark.reason("hidden-cpu-kernels")
@pytest.mark.parametrize("shown", [False, True], ids=["hidden", "shown"])
def test_hidden_cpu_kernels_prevent_publication(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: bool) -> None:
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))  # restores the variables after the test: a job sets them
    x = torch.randn(8, device="cuda", requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = with_a_backward_on_the_cpu(x)
        return y * torch.tensor(0.5) if shown else y

    program = captured(function, x).program
    key = uuid.uuid4().hex * 2
    job = wire.Job(
        id=key[:32],
        key=key,
        store=str(tmp_path / "store"),
        device=device_of_a_worker("cuda:0"),
        graph=program.to_bytes(),
        compile_threads=1,
        failure_ttl_s=60.0,
        name="graph",
    )
    finished = compiler.run_job(job)
    assert (finished.outcome, finished.reason) == (("published", "") if shown else ("failed", "hidden-cpu-kernels"))
    (artifact,) = Store(tmp_path / "store").lookup(key) or [None]
    assert (artifact is not None and bool(artifact.manifest.kernels)) == shown, "the backward has no kernel for the CPU"
