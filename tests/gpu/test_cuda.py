"""The whole way on CUDA; `make test-gpu`, or with everything else wherever a GPU is at hand.

What is held against eager is held there by the client program itself, as on CPU.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import support_compiles
import torch
from support_graphs import captured
from support_host import TIMEOUT_S, Host

from precompiled import wire
from precompiled.graph import capture
from precompiled.graph.environment import device_of_a_worker

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT TESTED ON A GPU: torch.cuda.is_available() is False"),
]

CASES = [(model, training) for model in ("mlp", "gpt2") for training in (False, True)]
IDS = [f"{model}-{'train' if training else 'infer'}" for model, training in CASES]


def states(graphs: list[dict[str, Any]]) -> set[tuple[str, str | None]]:
    return {(graph["state"], graph["source"]) for graph in graphs}


def empty_caches(folder: Path) -> dict[str, str]:
    """Caches of a client's own. Where they are is not in the key."""
    for name in ("triton", "inductor"):
        (folder / name).mkdir(parents=True)
    return {"TRITON_CACHE_DIR": str(folder / "triton"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}


def swapped_then_hit(host: Host, tmp_path: Path, spec: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two clients, each with empty caches: the first swaps, the second hits. Their results."""
    first = host.run(spec, env=empty_caches(tmp_path / "first"))
    assert first["waited"]
    assert states(first["first"]) == {("pending", None)}
    assert states(first["reports"]) == {("compiled", "swap")}, first["reports"]
    assert first["compiles"] == 0, "the client compiled itself"
    second = host.run(spec, env=empty_caches(tmp_path / "second"))
    assert states(second["first"]) == {("compiled", "hit")}, second["reports"]
    assert all(graph["calls_eager"] == 0 for graph in second["reports"])
    assert [graph["key"] for graph in second["reports"]] == [graph["key"] for graph in first["reports"]]
    assert second["compiles"] == 0
    return first, second


@pytest.mark.parametrize(("model", "training"), CASES, ids=IDS)
def test_a_model_swaps_in_and_hits_in_the_next_process(
    shared_host: Host, tmp_path: Path, model: str, training: bool
) -> None:
    spec = {"model": model, "training": training, "device": "cuda"}
    first, _second = swapped_then_hit(shared_host, tmp_path, spec)
    keys = {graph["key"] for graph in first["reports"]}
    manifests = [artifact.manifest for artifact in shared_host.store.all_artifacts()]
    assert {manifest.device for manifest in manifests if manifest.key in keys} == {"cuda"}


def test_user_triton_kernels(shared_host: Host, tmp_path: Path) -> None:
    swapped_then_hit(shared_host, tmp_path, {"model": "user-kernels", "device": "cuda"})


def test_a_client_with_empty_caches_starts_no_compiler(served: Host, tmp_path: Path) -> None:
    _first, second = swapped_then_hit(served, tmp_path, {"model": "gpt2", "training": True, "device": "cuda"})
    # No g++ or gcc (triton's launchers), no ptxas, none of Inductor's compile workers.
    assert second["started"] == []
    assert second["children"] == []
    # The kernels' machine code has come out of the artifact into the client's own cache.
    emitted = {path.suffix for path in (tmp_path / "second" / "triton").rglob("*") if path.is_file()}
    # Without the texts that the worker's Triton wrote on its way to it: nobody reads them, and they are four times it.
    assert emitted == {".cubin", ".json"}
    # What it has measured lies with it: the worker's folder may be another user's, or on another host.
    assert list((tmp_path / "second").rglob("*.best_config"))
    assert not list(served.root.rglob("*.best_config"))


def test_a_reductions_smaller_block_comes_with_the_artifact(served: Host, tmp_path: Path) -> None:
    """torch compiles it after it has put the kernel aside for its cache: in each process that loads that, once more."""
    spec = {"model": "reduction", "training": False, "device": "cuda"}
    served.run(spec, env=empty_caches(tmp_path / "first"))
    second = served.run(spec, env=empty_caches(tmp_path / "second"))
    assert states(second["first"]) == {("compiled", "hit")}, second["reports"]
    assert second["started"] == []
    # The kernel, in both sizes of its block.
    assert len(list((tmp_path / "second" / "triton").rglob("*.cubin"))) == 2


def test_a_kernel_with_a_long_name_comes_with_the_artifact(served: Host, tmp_path: Path) -> None:
    """Of more than Triton's 150 characters: torch would not launch it by itself, and ask Triton for it."""
    spec = {"model": "long-name", "training": False, "device": "cuda"}
    _first, second = swapped_then_hit(served, tmp_path, spec)
    assert second["started"] == []


def test_a_kernel_that_triton_launches_is_not_built_again(served: Host, tmp_path: Path) -> None:
    """Triton asks for ptxas' version then, and finds the machine code that the artifact has brought."""
    spec = {"model": "user-kernels", "training": False, "device": "cuda"}
    swapped_then_hit(served, tmp_path, spec)
    # Eager launches the same kernels; Inductor's options for Triton are others.
    described = [path for path in (tmp_path / "second" / "triton").rglob("*.json") if not path.name.startswith("__")]
    brought = [path for path in described if json.loads(path.read_text())["debug"]]
    assert {path.stem for path in brought} >= {"added", "doubled"}
    for path in brought:
        assert {other.suffix for other in path.parent.iterdir()} == {".cubin", ".json"}, "Triton has built it again"


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
@pytest.mark.parametrize("training", [False, True], ids=["infer", "train"])
def test_torch_compiles_own_modes(shared_host: Host, tmp_path: Path, mode: str, training: bool) -> None:
    spec = {"model": "mlp", "training": training, "device": "cuda", "compile": {"mode": mode}}
    first, second = swapped_then_hit(shared_host, tmp_path, spec)
    # Both modes ask for CUDA graphs; they are recorded by the client, in its own memory.
    assert first["cudagraphs"]
    assert second["cudagraphs"]


def test_cuda_graphs_of_a_forward_whose_backward_has_none(shared_host: Host, tmp_path: Path) -> None:
    """Its gradients are what it was given. torch makes such a backward after the forward was called."""
    spec = {"model": "sum", "training": True, "device": "cuda", "compile": {"mode": "reduce-overhead"}}
    swapped_then_hit(shared_host, tmp_path, spec)


def test_each_mode_has_a_key_of_its_own(shared_host: Host, tmp_path: Path) -> None:
    keys = set()
    for mode in (None, "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"):
        spec = {"model": "mlp", "training": False, "device": "cuda", "compile": {"mode": mode}}
        result = shared_host.run(spec, env=empty_caches(tmp_path / str(mode)))
        keys |= {graph["key"] for graph in result["reports"]}
    assert len(keys) == 4


# ---------------------------------------------------------------- the pinned worker


def gpu_workers(status: wire.StatusReply) -> list[wire.WorkerStatus]:
    return [worker for worker in status.workers if worker.device != "cpu"]


def test_a_worker_is_pinned_to_its_clients_gpu_by_uuid(host: Host, tmp_path: Path) -> None:
    host.start_daemon()
    host.run({"model": "mlp", "training": False, "device": "cuda"}, env=empty_caches(tmp_path))
    (worker,) = gpu_workers(host.status())
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    assert worker.device == device_of_a_worker("cuda:0")
    assert worker.device.endswith(uuid)
    environment = psutil.Process(worker.pid).environ()
    assert environment["CUDA_VISIBLE_DEVICES"].endswith(uuid)
    assert "," not in environment["CUDA_VISIBLE_DEVICES"]
    tool = shutil.which("nvidia-smi")
    if tool is not None:
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, check=True).stdout
        assert environment["CUDA_VISIBLE_DEVICES"] in listed


def test_a_cpu_graph_of_a_gpu_host_has_a_worker_without_a_gpu(host: Host, tmp_path: Path) -> None:
    host.start_daemon()
    host.run({"model": "mlp", "training": False}, env=empty_caches(tmp_path))
    (worker,) = host.status().workers
    assert worker.device == "cpu"
    assert psutil.Process(worker.pid).environ()["CUDA_VISIBLE_DEVICES"] == ""


# ---------------------------------------------------------------- memory


def used_memory() -> int:
    """Bytes in use on the GPU, by all processes: a container's process numbers are not those that the driver knows."""
    free, total = torch.cuda.mem_get_info()
    return total - free


MARGIN = 64 << 20  # what the driver itself takes and gives back


def test_a_released_worker_gives_all_its_memory_back(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.cuda.init()
    before = used_memory()
    monkeypatch.setenv("PRECOMPILED_WORKER_IDLE_S", "5")
    host.start_daemon()
    spec = {"model": "gpt2", "training": True, "device": "cuda", "compile": {"mode": "max-autotune-no-cudagraphs"}}
    client = host.start(spec, env=empty_caches(tmp_path))
    client.wait_for("first-step")
    worker = _until(lambda: gpu_workers(host.status()), "no worker for the GPU")[0]
    process = psutil.Process(worker.pid)
    client.result()
    process.wait(TIMEOUT_S)  # it leaves by itself once it has been idle for five seconds
    assert gpu_workers(host.status()) == []
    assert used_memory() <= before + MARGIN


def test_a_compile_leaves_nothing_in_the_allocator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # In this process, as in a worker: what a worker between two jobs keeps is its context alone.
    for name, value in empty_caches(tmp_path).items():
        monkeypatch.setenv(name, value)
    left, right = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    options = {"max_autotune": True}
    program = capture.parse(captured(lambda x, y: (x @ y).relu(), left, right, options=options).program.to_bytes())
    torch._dynamo.reset()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    assert support_compiles.compiled(program).bundle
    assert torch.cuda.memory_reserved() <= before


def test_the_gpu_is_in_the_key() -> None:
    program = captured(lambda x: x * 2, torch.randn(4, device="cuda")).program
    facts = json.loads(program.sections["environment"])
    assert facts["gpu"][0] == torch.cuda.get_device_name(0)
    assert facts["cuda"] == torch.version.cuda
    assert program.device == "cuda:0"
    # Inductor bakes the number of threads into CPU kernels only.
    assert json.loads(program.sections["modes"])["threads"] == 0


def _until(found: Callable[[], Any], otherwise: str) -> Any:
    """Ask again until there is an answer; bounded by the daemon's answers and the test's time limit."""
    import time

    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if answer := found():
            return answer
    raise AssertionError(otherwise)
