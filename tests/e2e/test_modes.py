"""Tests of precompiled's modes, and of the ways to enable precompiled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from support_host import PROGRAM, Host
from support_slow import everyday_or_slow

MLP = {"model": "mlp", "training": True}


@pytest.fixture(scope="module")
def warm_host(shared_host: Host) -> Host:
    """A host whose store has the artifact of the MLP."""
    shared_host.run(MLP)
    return shared_host


@pytest.mark.integration
def test_wait_returns_compiled_from_the_first_call(shared_host: Host) -> None:
    result = shared_host.run({"model": "mlp"}, {"PRECOMPILED_MODE": "wait"})
    (graph,) = result["first"]
    assert (graph["state"], graph["source"], graph["calls_eager"], graph["calls_compiled"]) == (
        "compiled",
        "swap",
        0,
        1,
    )


@pytest.mark.integration
def test_wait_runs_eager_after_its_deadline_and_swaps_later(served: Host) -> None:
    result = served.run(MLP, {"PRECOMPILED_MODE": "wait", "PRECOMPILED_WAIT_S": "0.01"})
    assert [graph["state"] for graph in result["first"]] == ["pending"]
    assert [graph["state"] for graph in result["reports"]] == ["compiled"]


def test_lookup_uses_artifacts(warm_host: Host) -> None:
    (graph,) = warm_host.run(MLP, {"PRECOMPILED_MODE": "lookup"})["reports"]
    assert graph["source"] == "hit"


@pytest.mark.integration
def test_lookup_never_submits_and_compiles_as_plain_torch_on_a_miss(host: Host) -> None:
    result = host.run(MLP, {"PRECOMPILED_MODE": "lookup"})
    (graph,) = result["reports"]
    assert (graph["state"], graph["source"], graph["reason"]) == ("bypassed", "inline", "lookup-only")
    assert result["compiles"] == 1
    assert not (host.root / "run").exists(), "a daemon was started"


@pytest.mark.integration
@pytest.mark.parametrize("env", [{"PRECOMPILED_MODE": "off"}, {"PRECOMPILED": "0"}], ids=["mode-off", "disabled"])
def test_off_is_plain_torch(warm_host: Host, env: dict[str, str]) -> None:
    result = warm_host.run(MLP, env)
    assert result["reports"] == []
    assert result["compiles"] == 1


def test_backend_by_name_needs_no_hook(warm_host: Host) -> None:
    (graph,) = warm_host.run({**MLP, "enable": False, "backend": "precompiled"})["reports"]
    assert graph["source"] == "hit"


@pytest.mark.integration
def test_run_switches_on_in_the_command_and_its_children(warm_host: Host) -> None:
    spec = json.dumps({**MLP, "enable": False})
    command = [
        sys.executable,
        "-m",
        "precompiled",
        "run",
        "--",
        "sh",
        "-c",
        '"$0" "$@"',
        sys.executable,
        str(PROGRAM),
        spec,
    ]
    done = subprocess.run(command, env=warm_host.environment(), capture_output=True, text=True, check=True, timeout=300)
    (graph,) = json.loads(done.stdout.splitlines()[-1])["reports"]
    assert graph["source"] == "hit"


@pytest.mark.integration
def test_mode_and_options_are_honoured_and_keyed(warm_host: Host) -> None:
    """A graph must not get an artifact that was compiled with a different mode= or different options= of
    torch.compile.
    """
    plain = warm_host.run(MLP)["reports"][0]
    seen = {plain["key"]}
    for compile_arguments in ({"mode": "max-autotune-no-cudagraphs"}, {"options": {"epilogue_fusion": False}}):
        result = warm_host.run({**MLP, "compile": compile_arguments})
        (graph,) = result["reports"]
        assert graph["state"] == "compiled"
        assert result["compiles"] == 0
        assert graph["key"] not in seen
        seen.add(graph["key"])


@pytest.mark.fault("program")
@pytest.mark.integration
def test_graph_of_a_client_that_exits_early_is_compiled(host: Host) -> None:
    """The client starts the daemon and may exit before the two are connected. The graph must still be compiled."""
    host.run({**MLP, "exit_after_first": True})
    (graph,) = host.run(MLP, {"PRECOMPILED_MODE": "wait"})["reports"]
    assert graph["state"] == "compiled"
    stats = host.stats()
    assert (stats.compiled, stats.failed) == (1, 0)


@pytest.mark.fault("forks")
@pytest.mark.integration
def test_graph_of_a_multiprocessing_child_that_exits_early_is_compiled(served: Host) -> None:
    """A child of multiprocessing ends with os._exit, without atexit handlers. The graph must still be compiled."""
    daemon = served.status().pid
    os.kill(daemon, signal.SIGSTOP)  # the daemon receives only what the child sends before its exit
    client = served.start({**MLP, "exit_after_first": True, "in_child_of_multiprocessing": True})
    client.wait_for("first-step")
    os.kill(daemon, signal.SIGCONT)
    client.result()
    (graph,) = served.run(MLP, {"PRECOMPILED_MODE": "wait"})["reports"]
    assert graph["state"] == "compiled"
    stats = served.stats()
    assert stats.submitted == stats.compiled + stats.deduplicated and stats.hits + stats.deduplicated == 1


@pytest.mark.parametrize(("model", "processes"), everyday_or_slow([("gpt2", 4), ("mlp", 8), ("mlp", 2)], [("mlp", 2)]))
def test_processes_that_start_at_once_compile_each_graph_once(served: Host, model: str, processes: int) -> None:
    spec = {"model": model, "training": True}
    clients = [served.start(spec, {"OMP_NUM_THREADS": "1"}) for _ in range(processes)]
    results = [client.result() for client in clients]
    keys = {graph["key"] for result in results for graph in result["reports"]}
    graphs = sum(len(result["reports"]) for result in results)
    assert all(graph["state"] == "compiled" for result in results for graph in result["reports"])
    assert sum(result["compiles"] for result in results) == 0
    stats = served.stats()
    assert stats.compiled == len(keys)
    assert stats.submitted == graphs - sum(g["source"] == "hit" for r in results for g in r["reports"])
    assert stats.compiled + stats.deduplicated + stats.hits == graphs


@pytest.mark.fault("forks")
@pytest.mark.integration
@pytest.mark.parametrize("when", ["before", "pending"])
def test_parent_and_child_of_a_fork_are_both_served(served: Host, when: str) -> None:
    spec = {**MLP, "fork": when, "child_result": str(served.root / "child.json")}
    # torch itself hangs in a fork if the parent has used libgomp's thread pool. One thread needs no pool.
    result = served.run(spec, {"OMP_NUM_THREADS": "1"})
    assert result["child_status"] == 0
    for process in (result, result["child"]):
        assert process["waited"]
        assert [graph["state"] for graph in process["reports"]] == ["compiled"]
        assert process["compiles"] == 0
    assert result["child"]["pid"] != result["pid"]
