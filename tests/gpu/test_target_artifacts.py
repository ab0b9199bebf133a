"""Tests of `--target`, which compiles artifacts for a GPU that the host does not have.

A client with the GPU must hit these artifacts, and the artifacts must equal those that a compile on the GPU makes. The
client uses this host's GPU if the table of kinds has it, and otherwise a made-up GPU.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support_cubins import executed
from support_host import TIMEOUT_S

from precompiled.made_up_cuda.kinds import KINDS
from precompiled.store import scratch
from precompiled.store.artifacts import Store

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,  # each test starts daemons, workers and clients of a CUDA build
    pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT TESTED ON A GPU: torch.cuda.is_available() is False"),
]
PROGRAM = Path(__file__).parent.parent / "programs" / "target_program.py"
MADE_UP = bool(os.environ.get("CUDA_MADE_UP"))
needs_other_kinds = pytest.mark.skipif(not MADE_UP, reason="NOT TESTED: this host has only its own GPU")


def kind_here() -> str:
    """Returns the kind of the clients' GPU in the table of kinds. Skips the test if the table lacks this kind."""
    if MADE_UP:
        return "h100"
    named = [kind.code for kind in KINDS.values() if kind.name == torch.cuda.get_device_name(0)]
    if not named:
        pytest.skip(f"NOT TESTED: {torch.cuda.get_device_name(0)} is not in the table of kinds")
    return named[0]


def environment(place: Path, **extra: str) -> dict[str, str]:
    """Returns the environment of a user without caches or settings, on a host without a GPU."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PRECOMPILED", "CUDA_"))}
    place.mkdir(exist_ok=True)
    own = {
        "PRECOMPILED_CACHE_DIR": str(place / "store"),
        "PRECOMPILED_RUNTIME_DIR": str(place / "run"),
        "PRECOMPILED_PACKAGE_AUDIT": "0",
        "PRECOMPILED_CHECK": "never",
        "TRITON_CACHE_DIR": str(place / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(place / "inductor"),
    }
    return {**kept, **own, "OMP_NUM_THREADS": "1", **extra}


def run(*command: str, env: dict[str, str], status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *command], env=env, check=False, capture_output=True, text=True, timeout=TIMEOUT_S, cwd="/"
    )
    assert done.returncode == status, done.stdout + done.stderr[-5000:]
    return done


def made_up(kind: str) -> dict[str, str]:
    """Returns variables that give a process a made-up GPU of ``kind``. On a host with a real GPU, returns no
    variables.
    """
    return {"CUDA_MADE_UP": kind} if MADE_UP else {}


def client(place: Path, kind: str, base: Path | None, **extra: str) -> Any:
    """Run a plain client on a GPU of ``kind`` for three steps, and return its report.

    With a base store the client must not start a daemon.
    """
    based = {} if base is None else {"PRECOMPILED_BASE": str(base), "PRECOMPILED_AUTOSTART": "0"}
    env = environment(place, CUBINS="1", **made_up(kind), **based, **extra)
    done = run("-m", "precompiled", "run", "--", sys.executable, str(PROGRAM), "3", env=env)
    return json.loads(done.stdout.splitlines()[-1])


def listing(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in sorted(root.rglob("*"))}


@pytest.fixture(scope="module")
def baked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any]]:
    """Returns a read-only base store for the clients' GPU, baked without this GPU, and the output of `bake`."""
    place = tmp_path_factory.mktemp("baked")
    base = place / "base"
    done = run(
        "-m",
        "precompiled",
        "bake",
        "--json",
        "--target",
        kind_here(),
        "--steps",
        "3",
        "-o",
        str(base),
        "--",
        sys.executable,
        str(PROGRAM),
        "0",
        env=environment(place / "maker"),
    )
    assert "MADE-UP GPU" in done.stderr
    subprocess.run(["chmod", "-R", "a-w", str(base)], check=True)
    yield base, json.loads(done.stdout)
    subprocess.run(["chmod", "-R", "u+w", str(base)], check=True)


def test_process_with_the_gpu_compiles_and_traces_nothing(baked: tuple[Path, Any], tmp_path: Path) -> None:
    base, report = baked
    assert report["target"] == KINDS[kind_here()].name and report["ended"] == "steps"
    assert report["artifacts"] >= 2 and report["packages"] >= 2, report
    manifests = [artifact.manifest for artifact in Store(base).all_artifacts()]
    assert {manifest.compiled_by["device"] for manifest in manifests} == {"made up"}
    before = listing(base)
    found = client(tmp_path / "theirs", kind_here(), base)
    assert found["gpu"] == KINDS[kind_here()].name
    assert {tuple(graph) for graph in found["graphs"]} == {("compiled", "package", "")}, found["graphs"]
    assert (found["traced"], found["compiles"], found["started"]) == ({}, 0, [])
    assert found["cubins"], "no kernel was loaded"
    # The client must not write its measurements to the folder of `bake`, which may belong to another user.
    assert not [path for path in base.parent.iterdir() if path.name.startswith(".")]
    if not MADE_UP:
        plain = client(tmp_path / "plain", kind_here(), None, PRECOMPILED_MODE="off")
        assert found["losses"] == pytest.approx(plain["losses"], rel=1e-4)
    assert listing(base) == before
    assert not (tmp_path / "theirs" / "store" / "artifacts").exists()


def test_host_with_another_cpu_and_compiler_compiles_nothing(baked: tuple[Path, Any], tmp_path: Path) -> None:
    """The host that bakes and the host with the GPU may have different CPUs and compilers. Artifacts must still be
    hits.

    The process traces, because a trace may contain properties of the CPU as constants.
    """
    base, _report = baked
    other = tmp_path / "bin" / "g++"
    other.parent.mkdir()
    other.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} "$@"\n')
    other.chmod(0o755)
    path = f"{other.parent}:{os.environ['PATH']}"
    found = client(tmp_path / "theirs", kind_here(), base, ATEN_CPU_CAPABILITY="default", PATH=path)
    assert {tuple(graph) for graph in found["graphs"]} == {("compiled", "hit", "")}, found["graphs"]
    assert (found["compiles"], found["started"]) == (0, []) and found["traced"]


def test_users_environment_needs_no_pth_file(tmp_path: Path) -> None:
    """A user's environment has no ``.pth`` file for the made-up device. The hook provides the device in the command,
    and each worker provides it itself.
    """
    venv.create(tmp_path / "venv", with_pip=False)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    installed = Path(sysconfig.get_path("purelib"))
    editable = [path.read_text() for path in installed.glob("__editable__*precompiled*.pth")]
    (site / "theirs.pth").write_text("\n".join([str(installed), *editable]))
    python, env = str(tmp_path / "venv" / "bin" / "python"), environment(tmp_path / "maker", PRECOMPILED_MODE="wait")
    try:
        command = [python, "-m", "precompiled", "run", "--target", "h100", "--", python, str(PROGRAM), "3"]
        done = subprocess.run(command, env=env, check=False, capture_output=True, text=True, timeout=TIMEOUT_S, cwd="/")
    finally:
        run("-m", "precompiled", "daemon", "stop", env=env)
    assert done.returncode == 0, done.stderr[-5000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["gpu"] == KINDS["h100"].name
    assert {tuple(graph) for graph in found["graphs"]} == {("compiled", "swap", "")}, found["graphs"]
    manifests = [artifact.manifest for artifact in Store(tmp_path / "maker" / "store").all_artifacts()]
    assert {manifest.compiled_by["device"] for manifest in manifests} == {"made up"}


@needs_other_kinds
def test_process_with_another_gpu_finds_no_artifact(baked: tuple[Path, Any], tmp_path: Path) -> None:
    base, _report = baked
    # The H200 is a special case: its architecture and number of multiprocessors equal those of the H100.
    for kind in ("h200", "a100"):
        found = client(tmp_path / kind, kind, base, PRECOMPILED_MODE="lookup")
        assert {tuple(graph) for graph in found["graphs"]} == {("bypassed", "inline", "lookup-only")}, found["graphs"]


def test_cubins_equal_those_of_a_compile_on_the_device(tmp_path: Path) -> None:
    """Except for the line table, a cubin must equal, byte for byte, the cubin that a compile on the GPU makes.

    A cubin contains the path of its source, so both compiles must use the same folder. Without a real GPU, the
    comparison uses a made-up one. Plain torch must generate the same cubins, too.
    """
    # A compile on a GPU would measure whether to pad matrix products of odd sizes, so the padding is off.
    env = environment(tmp_path, CUBINS="1", PRECOMPILED_MODE="wait", TORCHINDUCTOR_SHAPE_PADDING="0")
    folder = scratch.directory(tmp_path / "store")

    def made(*options: str, **extra: str) -> Any:
        try:
            done = run(
                "-m", "precompiled", "run", *options, "--", sys.executable, str(PROGRAM), "3", env={**env, **extra}
            )
        finally:
            run("-m", "precompiled", "daemon", "stop", env=env)
        for name in ("store", "triton", "inductor"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
        found = json.loads(done.stdout.splitlines()[-1])
        return {**found, "cubins": {name: executed(bytes.fromhex(cubin)) for name, cubin in found["cubins"].items()}}

    there, here = made("--target", kind_here()), made(**made_up(kind_here()))
    for found in (there, here):
        assert {tuple(graph) for graph in found["graphs"]} == {("compiled", "swap", "")}, found["graphs"]
    assert there["keys"] == here["keys"] and there["cubins"]
    assert there["cubins"] == here["cubins"]
    # Plain torch's cubins must have the same contents. Their names may differ, because Triton's key is different on
    # torch 2.11.
    plain = {"PRECOMPILED_MODE": "off", "TORCHINDUCTOR_CACHE_DIR": str(folder)}
    found = made(**made_up(kind_here()), **plain)
    plains = list(found["cubins"].values())
    assert found["graphs"] == [] and all(cubin in plains for cubin in there["cubins"].values())


@needs_other_kinds
def test_command_with_a_target_runs_eager(tmp_path: Path) -> None:
    """The command only fills the user's store. The calls in the command must run eager, because the command's GPU does
    not exist.
    """
    place = tmp_path / "maker"
    env = environment(place, PRECOMPILED_MODE="wait")
    try:
        losses = []
        # The second run finds artifacts and package entries. Even with PRECOMPILED_REQUIRE, the second run must run
        # eager.
        for required in ("0", "1"):
            done = run(
                "-m",
                "precompiled",
                "run",
                "--target",
                "cuda:sm_80",
                "--",
                sys.executable,
                str(PROGRAM),
                "3",
                env={**env, "PRECOMPILED_REQUIRE": required},
            )
            assert "MADE-UP GPU" in done.stderr
            found = json.loads(done.stdout.splitlines()[-1])
            assert found["gpu"] == KINDS["a100"].name and {graph[0] for graph in found["graphs"]} == {"compiled"}
            losses.append(found["losses"])
        assert {graph[1] for graph in found["graphs"]} == {"hit"}, found["graphs"]
    finally:
        run("-m", "precompiled", "daemon", "stop", env=env)
    eager = client(tmp_path / "eager", "a100", None, PRECOMPILED_MODE="off", TORCHDYNAMO_DISABLE="1")
    assert losses[0] == losses[1] and losses[0][0] == pytest.approx(eager["losses"][0], rel=1e-5)
    assert not list(place.rglob("*.best_config")), "a made-up time was kept"
    assert not (place / "triton").exists() and not (place / "inductor").exists(), "the user's own caches were used"


def test_failure_without_the_gpu_is_not_recorded(tmp_path: Path) -> None:
    """The compile may succeed on a host with the GPU, so no failure record may prevent it there."""
    text = """if 1:
        import json, torch, precompiled
        f = torch.compile(lambda x: (x.sin().sum(-1, keepdim=True) * x).cos(), options={"benchmark_fusion": True})
        f(torch.randn(4096, 64, device="cuda"))
        print(json.dumps([[graph.key, graph.state, graph.reason] for graph in precompiled.report()]))
    """
    env = environment(tmp_path / "maker", PRECOMPILED_MODE="wait")
    try:
        done = run("-m", "precompiled", "run", "--target", "h100", "--", sys.executable, "-c", text, env=env)
    finally:
        run("-m", "precompiled", "daemon", "stop", env=env)
    ((key, _state, reason),) = json.loads(done.stdout.splitlines()[-1])
    assert reason == "made-up-device"
    store = Store(tmp_path / "maker" / "store")
    assert store.failure(key) is None and store.lookup(key) == []


@pytest.mark.reason("package-device-numbers")
def test_code_that_reads_device_memory_gets_no_package(tmp_path: Path) -> None:
    """A trace would contain the made-up GPU's memory size as a constant, but the real GPU may have a different size."""
    program = tmp_path / "asks.py"
    program.write_text("""if 1:
        import json, torch, precompiled
        @torch.compile
        def asks(x):
            return x * torch.cuda.get_device_properties(0).total_memory
        @torch.compile
        def asks_not(x):
            return x * 2
        x = torch.randn(8, device="cuda")
        asks(x), asks_not(x)
        print(json.dumps({frame.name.rpartition(".")[2]: frame.reason for frame in precompiled.package_report()}))
    """)
    env = environment(tmp_path / "maker", PRECOMPILED_MODE="wait")
    try:
        done = run("-m", "precompiled", "run", "--target", "h100", "--", sys.executable, str(program), env=env)
    finally:
        run("-m", "precompiled", "daemon", "stop", env=env)
    assert json.loads(done.stdout.splitlines()[-1]) == {"asks": "package-device-numbers", "asks_not": ""}


def test_target_with_several_devices_shows_all_of_them(tmp_path: Path) -> None:
    text = "import torch; print(torch.cuda.device_count(), torch.cuda.get_device_name(1))"
    env = environment(tmp_path / "maker", CUDA_VISIBLE_DEVICES="7")
    done = run("-m", "precompiled", "run", "--target", "h200x8", "--", sys.executable, "-c", text, env=env)
    assert done.stdout.split(maxsplit=1) == ["8", KINDS["h200"].name + "\n"]
