"""End-to-end tests on CUDA. `make test-gpu` runs them. On a host with a GPU, `make test` runs them as well.

The client program compares its results with eager's.
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
    """Create empty folders for one client's caches of Triton and Inductor. Returns the variables that name the folders.
    The key does not depend on these paths.
    """
    for name in ("triton", "inductor"):
        (folder / name).mkdir(parents=True)
    return {"TRITON_CACHE_DIR": str(folder / "triton"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}


def swapped_then_hit(host: Host, tmp_path: Path, spec: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run two clients with empty caches. The first client must swap, and the second client must hit. Returns both
    results.
    """
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
def test_model_is_swapped_and_hits_in_the_next_process(
    shared_host: Host, tmp_path: Path, model: str, training: bool
) -> None:
    spec = {"model": model, "training": training, "device": "cuda"}
    first, _second = swapped_then_hit(shared_host, tmp_path, spec)
    keys = {graph["key"] for graph in first["reports"]}
    manifests = [artifact.manifest for artifact in shared_host.store.all_artifacts()]
    assert {manifest.device for manifest in manifests if manifest.key in keys} == {"cuda"}


def test_user_triton_kernels_are_swapped_and_hit(shared_host: Host, tmp_path: Path) -> None:
    swapped_then_hit(shared_host, tmp_path, {"model": "user-kernels", "device": "cuda"})


def test_a_client_with_empty_caches_starts_no_compiler(served: Host, tmp_path: Path) -> None:
    _first, second = swapped_then_hit(served, tmp_path, {"model": "gpt2", "training": True, "device": "cuda"})
    # The client starts no compiler (g++, ptxas, or gcc for Triton's launchers), and none of Inductor's compile workers.
    assert second["started"] == []
    assert second["children"] == []
    # Triton writes the artifact's machine code into the client's own cache.
    emitted = {path.suffix for path in (tmp_path / "second" / "triton").rglob("*") if path.is_file()}
    # Artifacts lack Triton's intermediate texts, which clients do not use and which are four times as large as the
    # rest.
    assert emitted == {".cubin", ".json"}
    # The client must write its measurements into its own cache: the worker's folder may belong to another user or host.
    assert list((tmp_path / "second").rglob("*.best_config"))
    assert not list(served.root.rglob("*.best_config"))


def test_artifact_contains_both_block_sizes_of_a_reduction(served: Host, tmp_path: Path) -> None:
    """torch saves a reduction's kernel before it compiles the kernel for a second block size. In plain torch, each
    process that loads the kernel compiles it again for the second block size.
    """
    spec = {"model": "reduction", "training": False, "device": "cuda"}
    served.run(spec, env=empty_caches(tmp_path / "first"))
    second = served.run(spec, env=empty_caches(tmp_path / "second"))
    assert states(second["first"]) == {("compiled", "hit")}, second["reports"]
    assert second["started"] == []
    # One cubin for each of the two block sizes.
    assert len(list((tmp_path / "second" / "triton").rglob("*.cubin"))) == 2


def test_artifact_contains_kernels_with_long_names(served: Host, tmp_path: Path) -> None:
    """If a kernel's name exceeds Triton's limit of 150 characters, torch lets Triton launch the kernel.

    The artifact must contain this kernel, too.
    """
    spec = {"model": "long-name", "training": False, "device": "cuda"}
    _first, second = swapped_then_hit(served, tmp_path, spec)
    assert second["started"] == []


def test_kernel_launched_by_triton_is_not_built_again(served: Host, tmp_path: Path) -> None:
    """If Triton launches a kernel itself, it looks up the kernel by a key that contains, for example, the version of
    ptxas. Triton must find the artifact's machine code.
    """
    spec = {"model": "user-kernels", "training": False, "device": "cuda"}
    swapped_then_hit(served, tmp_path, spec)
    # The eager run launches the same kernels with different options. Inductor's options include "debug".
    described = [path for path in (tmp_path / "second" / "triton").rglob("*.json") if not path.name.startswith("__")]
    brought = [path for path in described if json.loads(path.read_text())["debug"]]
    assert {path.stem for path in brought} >= {"added", "doubled"}
    for path in brought:
        assert {other.suffix for other in path.parent.iterdir()} == {".cubin", ".json"}, "Triton has built it again"


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
@pytest.mark.parametrize("training", [False, True], ids=["infer", "train"])
def test_modes_with_cuda_graphs_are_served(shared_host: Host, tmp_path: Path, mode: str, training: bool) -> None:
    spec = {"model": "mlp", "training": training, "device": "cuda", "compile": {"mode": mode}}
    first, second = swapped_then_hit(shared_host, tmp_path, spec)
    # In both modes ("reduce-overhead" and "max-autotune"), the client records CUDA graphs itself, because CUDA graphs
    # contain addresses of the client's memory.
    assert first["cudagraphs"]
    assert second["cudagraphs"]


def test_forward_with_cuda_graphs_and_trivial_backward_is_served(shared_host: Host, tmp_path: Path) -> None:
    """The backward returns its inputs as gradients. torch creates such a backward only after a call of the forward."""
    spec = {"model": "sum", "training": True, "device": "cuda", "compile": {"mode": "reduce-overhead"}}
    swapped_then_hit(shared_host, tmp_path, spec)


def test_each_mode_has_its_own_key(shared_host: Host, tmp_path: Path) -> None:
    keys = set()
    for mode in (None, "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"):
        spec = {"model": "mlp", "training": False, "device": "cuda", "compile": {"mode": mode}}
        result = shared_host.run(spec, env=empty_caches(tmp_path / str(mode)))
        keys |= {graph["key"] for graph in result["reports"]}
    assert len(keys) == 4


# ---------------------------------------------------------------- workers that are pinned to a GPU


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


def test_cpu_graph_on_a_gpu_host_gets_a_worker_without_gpu(host: Host, tmp_path: Path) -> None:
    host.start_daemon()
    host.run({"model": "mlp", "training": False}, env=empty_caches(tmp_path))
    (worker,) = host.status().workers
    assert worker.device == "cpu"
    assert psutil.Process(worker.pid).environ()["CUDA_VISIBLE_DEVICES"] == ""


# ---------------------------------------------------------------- memory of the GPU


def used_memory() -> int:
    """Returns the bytes of GPU memory that all processes use together.

    In a container, NVIDIA's figures per process have unknown process ids.
    """
    free, total = torch.cuda.mem_get_info()
    return total - free


MARGIN = 64 << 20  # bytes that the driver itself may allocate meanwhile


def test_released_worker_frees_all_its_gpu_memory(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    process.wait(TIMEOUT_S)  # a worker exits after five seconds without a job
    assert gpu_workers(host.status()) == []
    assert used_memory() <= before + MARGIN


def test_compile_leaves_no_memory_in_the_allocator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The test process compiles as a worker does. Between two jobs a worker may keep only its CUDA context.
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
    # The number of CPU threads does not count for a GPU graph, because Inductor writes it only into CPU kernels.
    assert json.loads(program.sections["modes"])["threads"] == 0


def _until(found: Callable[[], Any], otherwise: str) -> Any:
    """Poll until ``found()`` is true, and return its value. Raises AssertionError after the timeout."""
    import time

    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if answer := found():
            return answer
    raise AssertionError(otherwise)
