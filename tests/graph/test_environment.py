"""Tests of the environment variables that a process passes to its workers. A worker serves only processes with equal
variables.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import precompiled
from precompiled.core.errors import PrecompiledError
from precompiled.graph import environment
from precompiled.graph.environment import device_of_a_worker, facts, variables, worker_for

SHARED = {"PATH": "/bin", "HOME": "/home/u", "OMP_NUM_THREADS": "1", "MASTER_ADDR": "localhost", "WORLD_SIZE": "2"}


def torchrun(rank: int, run: int = 0) -> dict[str, str]:
    """Return the variables that torchrun, and a batch system around it, set for one rank of one run."""
    return {
        **SHARED,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "CUDA_VISIBLE_DEVICES": str(rank),
        "CUDA_DEVICE_ORDER": ("PCI_BUS_ID", "FASTEST_FIRST")[rank],  # the pool sets this variable for its workers
        "CUDA_LAUNCH_BLOCKING": str(rank),  # affects when a program waits, not the compiled code
        "TORCHELASTIC_RUN_ID": f"run-{run}",
        "TORCHELASTIC_RESTART_COUNT": str(run),
        "TORCHELASTIC_ERROR_FILE": f"/tmp/torchelastic_{run}/attempt_0/{rank}/error.json",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"/tmp/nccl_trace_rank_{rank}",
        "TORCH_COMPILE_JOB_ID": f"job-{run}",
        "TORCH_LOGS": "",
        "TORCH_TRACE": f"/tmp/trace/{rank}",
        "TMPDIR": f"/scratch/job-{run}",
        "TORCHINDUCTOR_CACHE_DIR": f"/scratch/job-{run}/{rank}",
        "TRITON_CACHE_DIR": f"/scratch/job-{run}/triton-{rank}",
        "TRITON_HOME": f"/scratch/job-{run}",
    }


def variables_in(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(os, "environ", environ)
    return variables()


def test_ranks_of_all_runs_share_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [variables_in(torchrun(rank, run), monkeypatch) for rank in (0, 1) for run in (0, 1)]
    assert all(each == found[0] for each in found)
    assert found[0] == {name: SHARED[name] for name in ("PATH", "HOME", "OMP_NUM_THREADS")}


@pytest.mark.parametrize("name", ["TRITON_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"])
def test_cache_directories_are_not_in_the_key(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name, raising=False)
    before = facts("cpu")
    monkeypatch.setenv(name, "/scratch/job-1")
    assert facts("cpu") == before


OF_PYTHON = """
import json, sys
sys.path.insert(0, sys.argv[1])
from precompiled.graph import environment
print(json.dumps({name: value for name, value in environment.variables().items() if name.startswith("PYTHON")}))
"""
SEARCHED = {"PYTHONPATH": "/more", "PYTHONUSERBASE": "/of/the/user"}


@pytest.mark.parametrize(
    ("option", "environ", "expected"),
    [
        pytest.param("-s", SEARCHED, {**SEARCHED, "PYTHONNOUSERSITE": "1"}, marks=pytest.mark.integration),
        pytest.param("-E", {**SEARCHED, "PYTHONNOUSERSITE": "1"}, {}, marks=pytest.mark.integration),
        ("-I", SEARCHED, {"PYTHONNOUSERSITE": "1"}),  # means -s and -E
    ],
)
def test_worker_uses_the_programs_module_search_path(
    option: str, environ: dict[str, str], expected: dict[str, str]
) -> None:
    done = subprocess.run(
        [sys.executable, option, "-c", OF_PYTHON, str(Path(precompiled.__file__).parents[1])],
        env={"PATH": "/bin", **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == expected


@pytest.mark.parametrize(
    "name",
    ["TORCHINDUCTOR_MAX_AUTOTUNE", "TORCH_CUDA_ARCH_LIST", "TRITON_PTXAS_PATH", "CUDA_HOME", "CXX"],
)
def test_variables_that_a_compile_reads_reach_workers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert variables_in({name: "x"}, monkeypatch) == {name: "x"}


def test_assembler_that_torch_sets_itself_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_PTXAS_PATH", raising=False)
    before = facts("cpu"), variables()
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(Path(torch.__file__).parent / "bin" / "ptxas"))
    assert (facts("cpu"), variables()) == before
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/opt/ptxas")
    assert facts("cpu") != before[0] and variables()["TRITON_PTXAS_PATH"] == "/opt/ptxas"


def test_variables_that_vllm_declares_count_if_vllm_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    before = facts("cpu"), variables()
    monkeypatch.setenv("VLLM_USE_LAYERNAME", "0")
    monkeypatch.setenv("VLLM_HOST_IP", "10.0.0.1")
    assert (facts("cpu"), variables()) == before
    environment._vllms_variables.cache_clear()
    monkeypatch.setitem(sys.modules, "vllm.envs", SimpleNamespace(compile_factors=lambda: {"VLLM_USE_LAYERNAME": 0}))
    assert variables() == {**before[1], "VLLM_USE_LAYERNAME": "0"}
    here = facts("cpu")
    assert here["variables"] == {**before[0]["variables"], "VLLM_USE_LAYERNAME": "0"}
    # A worker must find the same facts in the variables that it got, before and after it imports vLLM.
    monkeypatch.delenv("VLLM_HOST_IP")
    assert facts("cpu", of_a_worker=True) == here
    monkeypatch.delitem(sys.modules, "vllm.envs")
    assert facts("cpu", of_a_worker=True) == here
    environment._vllms_variables.cache_clear()


def test_library_path_does_not_count_for_a_graph_without_cpu_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sanitizers and cluster modules set LD_LIBRARY_PATH for a program. Machine code for a GPU does not depend on this
    variable.
    """
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    before = facts("cpu"), facts("cpu", uses_cpu=False)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/tool")
    assert facts("cpu") != before[0]
    assert facts("cpu", uses_cpu=False) == before[1]


def test_profiler_variables_do_not_reach_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    before = variables()
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/tool/injection.so")
    assert variables() == before


def test_variables_set_by_an_import_in_a_worker_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/lib")
    monkeypatch.delenv("TRITON_OVERRIDE", raising=False)
    before = facts("cpu", of_a_worker=True)
    with environment.unchanged():
        os.environ["LD_LIBRARY_PATH"] += ":/more"
        os.environ["TRITON_OVERRIDE"] = "1"
        assert facts("cpu", of_a_worker=True) != before
    assert facts("cpu", of_a_worker=True) == before


@pytest.mark.parametrize(
    ("name", "visible", "pinned"),
    [
        ("NVIDIA A100", None, "cuda:GPU-the-gpu"),
        ("NVIDIA A100", "1,0", "cuda:GPU-the-gpu"),
        ("NVIDIA A100 MIG 1g.5gb", "MIG-a-slice", "cuda:MIG-a-slice"),
        ("NVIDIA A100 MIG 1g.5gb", " MIG-a-slice,MIG-another", "cuda:MIG-a-slice"),
        ("NVIDIA A100 MIG 1g.5gb", "0", "cuda:GPU-the-gpu"),
        ("NVIDIA A100", "MIG-set-later", "cuda:GPU-the-gpu"),
    ],
)
def test_worker_is_pinned_to_the_gpu_or_slice_that_the_process_sees(
    name: str, visible: str | None, pinned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    properties = SimpleNamespace(name=name, uuid="the-gpu")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert device_of_a_worker("cuda:0") == pinned


@pytest.mark.skipif(torch.version.cuda is not None, reason="NOT TESTED: this torch is a CUDA build")
@pytest.mark.reason("no-made-up-gpu")
def test_a_worker_without_the_gpu_needs_a_cuda_build_of_torch() -> None:
    with pytest.raises(PrecompiledError, match="is not a CUDA build") as error:
        worker_for("cuda:0", without_gpu=True)
    assert error.value.code == "no-made-up-gpu" and error.value.action
    assert worker_for("cpu", without_gpu=True)[1] == "cpu"
