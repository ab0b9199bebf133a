"""Tests of CUDA as programs use it: streams, captures, user kernels, several GPUs, and a lost GPU.

The made-up device logs which process loads and launches which kernel, and tests check this log. A real GPU has no such
log, so these checks are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from support_host import Client, Host

from precompiled.graph.environment import device_of_a_worker

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT TESTED ON A GPU: torch.cuda.is_available() is False"),
    pytest.mark.timeout(3000),  # several clients, one after the other, with a compile each
]
MADE_UP = bool(os.environ.get("CUDA_MADE_UP"))
needs_the_log = pytest.mark.skipif(not MADE_UP, reason="NOT TESTED: a real device keeps no log")

PROGRAM = Path(__file__).parents[1] / "programs" / "cuda_program.py"


def start(host: Host, way: str, folder: Path, **variables: str) -> Client:
    """Start a client with its own caches in ``folder``.

    The client is a new interpreter, because a fork of the zygote has a different ``__main__``.
    """
    caches = {"TRITON_CACHE_DIR": str(folder / "triton"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    return host.program(str(PROGRAM), way, env={**caches, **variables}, forked=False)


def run(host: Host, way: str, folder: Path, **variables: str) -> dict[str, Any]:
    client = start(host, way, folder, **variables)
    answer = client.result()
    answer["events"] = events(client.process.pid)
    return answer


def events(pid: int) -> list[dict[str, Any]]:
    """Returns the entries of one process in the log of the made-up device. Empty for a real GPU."""
    if not MADE_UP:
        return []
    lines = Path(os.environ["CUDA_MADE_UP_STATE"], "log.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["pid"] == pid]


def states(answer: dict[str, Any]) -> set[tuple[str, str | None]]:
    return {(graph["state"], graph["source"]) for graph in answer["reports"]}


# ---------------------------------------------------------------- captures of CUDA graphs, and streams


def test_swap_during_a_cuda_graph_capture_waits_for_its_end(shared_host: Host, tmp_path: Path) -> None:
    answer = run(shared_host, "capture", tmp_path)
    assert answer["waited"] == [True]
    in_capture = answer["in_capture"]
    # The artifact is loaded during the capture. All calls within the capture must still run eager.
    assert (in_capture["state"], in_capture["source"], in_capture["calls_compiled"]) == ("compiled", "swap", 0)
    assert answer["reports"][0]["calls_compiled"] == 3
    if MADE_UP:
        kinds = [event["event"] for event in answer["events"]]
        assert "capture-broken" not in kinds
        first, second = (index for index, kind in enumerate(kinds) if kind == "capture-begin")
        ends = [index for index, kind in enumerate(kinds) if kind == "capture-end"]
        assert "load" in kinds[first : ends[0]], "the artifact was loaded outside of the capture"
        assert "load" not in kinds[second : ends[1]]
        assert [event["nodes"] for event in answer["events"] if event["event"] == "capture-end"] == [0, 2]


@needs_the_log
def test_compile_in_process_waits_for_the_end_of_a_capture(shared_host: Host, tmp_path: Path) -> None:
    answer = run(shared_host, "compile_in_capture", tmp_path)
    assert answer["reports"][0]["reason"] == "made-up-device"
    assert (answer["in_capture"], answer["compiles"]) == (0, 1)
    assert "capture-broken" not in [event["event"] for event in answer["events"]]


def test_compiled_code_runs_on_the_callers_stream(shared_host: Host, tmp_path: Path) -> None:
    answer = run(shared_host, "stream", tmp_path)
    assert states(answer) <= {("compiled", "swap"), ("compiled", "hit")}
    if MADE_UP:
        launches = [event for event in answer["events"] if event["event"] == "launch"]
        assert launches and {event["stream"] for event in launches} == {answer["stream"]}


# ---------------------------------------------------------------- tools of CUDA


def test_blocking_launches_use_the_same_artifact(served: Host, tmp_path: Path) -> None:
    for blocking, source in (("0", "swap"), ("1", "hit")):
        answer = run(served, "plain", tmp_path / blocking, CUDA_LAUNCH_BLOCKING=blocking)
        assert states(answer) == {("compiled", source)}


def test_memory_snapshot_includes_allocations_of_compiled_code(shared_host: Host, tmp_path: Path) -> None:
    answer = run(shared_host, "snapshot", tmp_path)
    assert {state for state, _ in states(answer)} == {"compiled"}
    assert answer["known"]


@pytest.mark.skipif(MADE_UP, reason="NOT TESTED: compute-sanitizer needs a GPU")
@pytest.mark.skipif(not shutil.which("compute-sanitizer"), reason="NOT TESTED: there is no compute-sanitizer")
def test_compute_sanitizer_finds_no_error_in_artifact_code(shared_host: Host, tmp_path: Path) -> None:
    first = run(shared_host, "sanitized", tmp_path / "first")
    assert {state for state, _ in states(first)} == {"compiled"}, first["reports"]
    caches = {name: str(tmp_path / "second" / name) for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")}
    done = subprocess.run(
        ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", sys.executable, str(PROGRAM), "sanitized"],
        env=shared_host.environment(caches),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "ERROR SUMMARY: 0 errors" in done.stdout
    (report,) = (line for line in done.stdout.splitlines() if line.startswith("{"))
    assert states(json.loads(report)) == {("compiled", "hit")}


@pytest.mark.reason("gpu-unavailable")
def test_full_gpu_is_not_recorded_as_a_failure_of_the_graph(host: Host, tmp_path: Path) -> None:
    """On a full GPU a worker cannot measure matrix products, or cannot even start. The program compiles in process."""
    host.start_daemon()
    # With made-up GPUs, the test uses the last GPU, because concurrent tests use the others.
    answer = run(host, "full", tmp_path / "full", **({"CUDA_VISIBLE_DEVICES": "2"} if MADE_UP else {}))
    (graph,) = answer["first"]
    assert (graph["state"], graph["reason"]) == ("bypassed", "gpu-unavailable"), graph
    assert host.store.failure(graph["key"]) is None, "it was recorded as the graph's fault"
    assert [graph["source"] for graph in answer["reports"]] == ["inline"]


@needs_the_log
@pytest.mark.reason("gpu-unavailable")
def test_gpu_in_exclusive_mode_is_left_to_the_program(host: Host, tmp_path: Path) -> None:
    """A GPU in exclusive mode admits one process, so a worker on the GPU would exclude every program."""
    exclusive = Path(os.environ["CUDA_MADE_UP_STATE"], "exclusive-2")
    exclusive.touch()
    try:
        host.start_daemon()
        answer = run(host, "plain", tmp_path / "plain", CUDA_VISIBLE_DEVICES="2")
    finally:
        exclusive.unlink()
    assert {graph["reason"] for graph in answer["reports"]} == {"gpu-unavailable"}, answer["reports"]
    assert {graph["source"] for graph in answer["reports"]} == {"inline"}


# ---------------------------------------------------------------- the program's own kernels, and packages


def launched(answer: dict[str, Any]) -> set[str]:
    """Returns the program's own kernels that were launched on the device."""
    names = {event["kernel"] for event in answer["events"] if event["event"] == "launch"}
    return {own for own in ("scaled", "tuned", "inner", "closed") for name in names if name.startswith(own)}


def test_kernels_of_the_program_are_served_and_launched(shared_host: Host, tmp_path: Path) -> None:
    first = run(shared_host, "kernels", tmp_path / "first")
    assert states(first) == {("compiled", "swap")}, first["reports"]
    second = run(shared_host, "kernels", tmp_path / "second")
    assert states(second) == {("compiled", "hit")}, second["reports"]
    if MADE_UP:
        assert launched(second) == {"scaled", "tuned", "inner"}


def test_kernel_with_a_closure_raises_the_error_of_plain_torch(shared_host: Host, tmp_path: Path) -> None:
    answer = run(shared_host, "closures", tmp_path / "ours")
    assert [graph["reason"] for graph in answer["reports"]] == ["user-kernel"]
    plain = run(shared_host, "closures", tmp_path / "plain", PRECOMPILED="0")
    assert plain["reports"] == [] and answer.get("error") == plain.get("error") is not None


def test_key_is_equal_before_and_after_the_first_attention(shared_host: Host, tmp_path: Path) -> None:
    answer = run(shared_host, "attention_order", tmp_path)
    under_flash, *others = answer["reports"]
    assert {graph["state"] for graph in answer["reports"]} == {"compiled"}, answer
    assert len(others) == 2 and len({graph["key"] for graph in others}) == 1 and under_flash["key"] != others[0]["key"]


@pytest.mark.parametrize("way", ["package", "attention_package"])
def test_a_second_process_with_packages_traces_nothing(shared_host: Host, tmp_path: Path, way: str) -> None:
    on = {"PRECOMPILED_PACKAGES": "program"}
    first = run(shared_host, way, tmp_path / "first", **on)
    assert first["frames"] and first["packages"][0]["state"] == "recorded", first["packages"]
    second = run(shared_host, way, tmp_path / "second", **on)
    assert second["frames"] == {}, "a frame was traced"
    assert states(second) == {("compiled", "package")}, second["reports"]
    if MADE_UP:
        assert [event["event"] for event in second["events"]].count("launch") >= 1


# ---------------------------------------------------------------- several GPUs, and CUDA_VISIBLE_DEVICES


@needs_the_log
@pytest.mark.skipif(
    os.environ.get("CUDA_MADE_UP") != "h100,h100,a100", reason="this host's GPUs are not h100,h100,a100"
)
def test_each_kind_of_gpu_has_its_own_workers_and_artifacts(host: Host, tmp_path: Path) -> None:
    """Each client sees its GPU, selected by index or UUID, as cuda:0. The client must load only artifacts for this kind
    of GPU.

    The clients run one after the other.
    """
    host.start_daemon()
    uuids = [device_of_a_worker(f"cuda:{index}").removeprefix("cuda:") for index in range(3)]
    asked = {"index": "1", "other-kind": uuids[2], "same-kind": uuids[0], "other-again": "2,0"}
    found = {}
    for name, visible in asked.items():
        # The first client starts the daemon. The first client's CUDA_VISIBLE_DEVICES must not apply to the workers of
        # later clients.
        found[name] = run(host, "plain", tmp_path / name, CUDA_VISIBLE_DEVICES=visible)
    keys = {name: answer["reports"][0]["key"] for name, answer in found.items()}
    assert keys["index"] == keys["same-kind"] != keys["other-kind"] == keys["other-again"]
    assert [next(iter(states(answer)))[1] for answer in found.values()] == ["swap", "swap", "hit", "hit"]
    workers = {worker.device.removeprefix("cuda:"): worker.pid for worker in host.status().workers}
    assert set(workers) == {uuids[1], uuids[2]}
    for uuid, pid in workers.items():
        assert psutil.Process(pid).environ()["CUDA_VISIBLE_DEVICES"] == uuid
    loads = {
        name: {(event["device"], event["architecture"]) for event in answer["events"] if event["event"] == "load"}
        for name, answer in found.items()
    }
    assert loads == {
        "index": {(1, 90)},
        "other-kind": {(2, 80)},
        "same-kind": {(0, 90)},
        "other-again": {(2, 80)},
    }


@pytest.mark.parametrize("visible", ["", "-1", "MIG-6d616465-7570-0000-0000-000000000001"])
def test_process_without_visible_gpus_is_served_on_the_cpu(shared_host: Host, tmp_path: Path, visible: str) -> None:
    if visible.startswith("MIG-") and not MADE_UP:
        pytest.skip("NOT TESTED: this host may have slices of a GPU, by other names")
    spec = {"model": "mlp", "training": False}
    result = shared_host.run(spec, env={"CUDA_VISIBLE_DEVICES": visible})
    assert states(result) <= {("compiled", "swap"), ("compiled", "hit")}


# ---------------------------------------------------------------- a GPU that is lost


@needs_the_log
@pytest.mark.reason("device-lost")
def test_worker_that_lost_its_gpu_is_replaced_without_a_failure_record(host: Host, tmp_path: Path) -> None:
    host.start_daemon()
    run(host, "plain", tmp_path / "warm")
    (worker,) = [worker for worker in host.status().workers if worker.device != "cpu"]
    gone = Path(os.environ["CUDA_MADE_UP_STATE"], f"lost-0-{worker.pid}")
    gone.touch()
    answer = run(host, "stream", tmp_path / "same graph: nothing to compile")
    assert states(answer) == {("compiled", "hit")}
    lost = run(host, "kernels", tmp_path / "lost")
    (graph,) = lost["reports"]
    assert (graph["state"], graph["reason"], graph["calls_compiled"]) == ("failed", "device-lost", 0), graph
    assert "lost" in graph["message"]
    assert host.store.failure(graph["key"]) is None, "it was recorded as the graph's fault"
    again = run(host, "kernels", tmp_path / "again")
    assert states(again) == {("compiled", "swap")}, again["reports"]
    (other,) = [worker for worker in host.status().workers if worker.device != "cpu"]
    assert other.pid != worker.pid
    gone.unlink()
