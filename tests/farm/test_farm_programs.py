"""Tests of a farm with real nodes: it compiles jobs for which this host has no free worker, and clients swap in the
results.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import support_farm
from support_daemon import wait_until
from support_host import TIMEOUT_S, Client, Host

from precompiled.core.children import start_with_stream
from precompiled.farm import messages

pytest.importorskip("ray", reason="needs Ray: pip install '.[test-farm]'")
pytestmark = pytest.mark.slow  # starts a cluster, and compiles into empty stores

PROGRAM = Path(__file__).parent.parent / "programs" / "farm_program.py"


@pytest.fixture(scope="module")
def cluster() -> Iterator[support_farm.Cluster]:
    with support_farm.cluster() as found:
        for _node in range(3):
            found.add()
        yield found


def settings(cluster: support_farm.Cluster, **more: str) -> dict[str, str]:
    return {
        "PRECOMPILED_FARM": "auto",
        "RAY_ADDRESS": cluster.address,
        "PRECOMPILED_WORKERS": "1",
        "OMP_NUM_THREADS": "1",
        **more,
    }


def start(host: Host, env: dict[str, str], graphs: int, seed: int) -> Client:
    return host.program(
        "-m", "precompiled", "run", "--", sys.executable, str(PROGRAM), str(graphs), str(seed), env=env, forked=False
    )


def all_came(client: Client) -> None:
    """Check that each graph of the program ran compiled and gave the results of eager code."""
    found = client.result()
    assert found["done"] and {state for state, *_ in found["graphs"]} == {"compiled"}, found


def test_job_without_a_slot_is_compiled_on_the_farm(host: Host, cluster: support_farm.Cluster) -> None:
    """The host of this test is not a node of the cluster."""
    env = {**settings(cluster), "PRECOMPILED_FARM": cluster.url}
    # Until Ray has connected this host, its own worker compiles the graphs, and could compile all of them.
    wait_until(lambda: host.answer(env, "farm", "status", status=None)["state"] == "ok", "the farm answers", TIMEOUT_S)
    all_came(start(host, env, 5, seed=0))
    status = host.answer(env, "farm", "status")
    assert (status["state"], status["places"], [node["places"] for node in status["nodes"]]) == ("ok", 3, [1, 1, 1])
    assert status["compiled"] > 0 and status["failed"] == status["refused"] == {}, status
    stats = host.answer(env, "cache", "stats")
    # No graph is compiled twice, unless the farm is late on a slow machine and this host compiles the graph itself.
    assert 5 <= stats["compiled"] + status["compiled"] <= 5 + status["hedged"]
    assert stats["farm"]["sent"] == status["sent"]
    # The farm's artifacts serve the next process just as a local worker's artifacts would.
    again = start(host, env, 5, seed=0).result()
    assert [source for _, source, _ in again["graphs"]] == ["hit"] * 5
    checks = {check["check"]: check for check in host.answer(env, "doctor")}
    assert checks["farm"]["state"] == "ok", checks


@pytest.mark.fault("remote")
def test_driver_connects_again_if_the_clusters_server_for_it_ends_at_its_start(cluster: support_farm.Cluster) -> None:
    process, stream = start_with_stream("-m", "precompiled.farm.driver", "--address", cluster.url)
    try:
        wait_until(cluster.kill_server_of_a_client, "the server for the driver starts")
        stream.settimeout(TIMEOUT_S)
        first = messages.receive(stream.makefile("rb"), messages.FromDriver)
        assert isinstance(first, messages.Nodes) and len(first.nodes) == 3, first
    finally:
        stream.close()
        process.wait(TIMEOUT_S)


@pytest.mark.fault("remote")
def test_all_graphs_are_compiled_despite_a_killed_and_a_hanging_node(host: Host, cluster: support_farm.Cluster) -> None:
    env = settings(cluster)
    client = start(host, env, 6, seed=1)
    (victim, *_) = wait_until(
        lambda: [number for number in range(3) if cluster.at_work(number)], "a node compiles", TIMEOUT_S
    )
    cluster.kill(victim)
    all_came(client)
    status = host.answer(env, "farm", "status")
    assert status["places"] == 2 and status["failed"] == status["refused"] == {}, "Ray had its job done elsewhere"

    # The farm is now slower than before, so free workers of this host compile the jobs that the farm has not returned.
    client = start(host, env, 4, seed=2)
    found = wait_until(
        lambda: [job for number in range(3) if number != victim for job in cluster.at_work(number)],
        "another node compiles",
        TIMEOUT_S,
    )
    hanging = psutil.Process(found[0].worker)
    hanging.suspend()
    try:
        all_came(client)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            hanging.resume()
    assert host.answer(env, "farm", "status")["hedged"] > status["hedged"]


@pytest.mark.fault("remote")
def test_host_compiles_all_graphs_if_no_node_can(host: Host, cluster: support_farm.Cluster) -> None:
    """The only node that is left has invalid settings, so this host compiles all graphs."""
    for number in set(range(len(cluster.nodes))) - cluster.killed:
        cluster.kill(number)
    cluster.add(env={"PRECOMPILED_CACHE_DIR": "not/absolute"}, places=2)
    env = settings(cluster)
    all_came(start(host, env, 4, seed=3))
    status = host.answer(env, "farm", "status")
    assert status["compiled"] == 0 and status["refused"].keys() == {"farm-environment"}, status
    assert "absolute" in status["last"] and status["failed"] == {}, status
    assert host.answer(env, "cache", "stats")["compiled"] == 4
    checks = {check["check"]: check for check in host.answer(env, "doctor")}
    assert checks["farm"]["state"] == "warn" and "farm-environment" in checks["farm"]["message"]
