"""Compiles twelve distinct graphs on farms of one, two and three nodes, each with one place and one core of this
machine.

`make bench-farm` (`python -m benchmarks.farm`). The benchmark uses a real Ray cluster, and the helper's code for a
farm: ``farm.Farm`` in this process, and its driver process (farm/driver.py). No worker of this host compiles. Each node
is warm: it has already compiled another graph.

The nodes use the machine's cores round robin. So with more nodes than cores, the result shows only the farm's cost.
With ``--share 0.5``, each node has half a core to itself. The column "places in use" is the nodes' total compile time,
divided by the product of the run's time and the number of nodes. Exits 1 if any graph was not compiled on a node.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.console import begin
from benchmarks.harness.cores import Share
from benchmarks.harness.result import Table, describe_machine, write_part
from precompiled import wire
from precompiled.farm.farm import Farm
from precompiled.graph import capture, environment, key
from precompiled.store.artifacts import Store

TITLE = "Distinct graphs on a farm of warm nodes, one place and {} each"
HEADERS = [
    "nodes",
    "graphs",
    "compiled on nodes",
    "compiled here",
    "seconds",
    "time / time of one node",
    "places in use",
]
RAYS_STORE_BYTES = 100 << 20
LIMIT_S = 1200.0


@dataclass(frozen=True)
class Outcome:
    nodes: int
    graphs: int
    counted: dict[str, Any]
    seconds: float


def graph(number: int) -> wire.Job:
    """An encoder layer in inference. The layer's width depends on ``number``."""
    width = 32 * (number + 1)
    layer = torch.nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
    programs: list[capture.SerializedGraph] = []

    def backend(module: torch.fx.GraphModule, _: list[Any]) -> Any:
        programs.append(capture.capture(module, {}))
        return module.forward

    torch._dynamo.reset()
    torch.compile(layer, backend=backend, dynamic=False, fullgraph=True)(torch.randn(4, 16, width))
    program = programs[0]
    return wire.Job(
        id=str(number),
        key=key.key(program.sections),
        store="",
        device="cpu",
        graph=program.to_job("", []),
        compile_threads=1,
        failure_ttl_s=1.0,
        name=f"layer {width}",
        offer=wire.Offer(environment.interpreter_of_a_worker(program.modules), LIMIT_S),
    )


@contextmanager
def cluster(nodes: int, root: Path, share: float) -> Iterator[None]:
    """Start a cluster and set RAY_ADDRESS for this process.

    ``share``: the fraction of a core for each node. 0: whole cores, round robin.
    """
    from ray.cluster_utils import Cluster

    cores = sorted(os.sched_getaffinity(0))
    os.environ.update(RAY_TMPDIR=str(root), RAY_USAGE_STATS_ENABLED="0")
    rays, shares = Cluster(), [Share(str(number), share) for number in range(nodes) if share]
    try:
        rays.add_node(num_cpus=0, include_dashboard=False, object_store_memory=RAYS_STORE_BYTES)
        for number in range(nodes):
            if shares:
                shares[number].enter()
            else:
                os.sched_setaffinity(0, {cores[number % len(cores)]})  # the node's processes inherit this
            rays.add_node(
                num_cpus=1,
                resources={"precompiled": 1},
                object_store_memory=RAYS_STORE_BYTES,
                env_vars={"PRECOMPILED_CACHE_DIR": str(root / f"node{number}")},
            )
            if shares:
                shares[number].leave()
        os.sched_setaffinity(0, cores)
        os.environ["RAY_ADDRESS"] = rays.address
        yield
    finally:
        os.sched_setaffinity(0, cores)
        rays.shutdown()
        for group in shares:
            group.leave()
            group.remove()


def measured(nodes: int, share: float, warming: list[wire.Job], jobs: list[wire.Job]) -> Outcome:
    root = Path(tempfile.mkdtemp(prefix="pc-"))
    left: set[str] = set()
    changed = threading.Condition()

    def ended(name: str, _slots: list[int]) -> None:
        with changed:
            left.discard(name)
            changed.notify_all()

    def run(farm: Farm, wanted: list[wire.Job]) -> float:
        left.update(job.key for job in wanted)
        began = time.perf_counter()
        for job in wanted:
            farm.take(job)
        with changed:
            changed.wait_for(lambda: not left, LIMIT_S)
        return time.perf_counter() - began

    try:
        with cluster(nodes, root, share):
            farm = Farm("auto", Store(root / "store"), ended)
            farm.look(LIMIT_S)
            while farm.document()["places"] < nodes:
                time.sleep(0.1)  # the driver checks for nodes every 2 s
            run(farm, warming[:nodes])
            before = farm.document()
            seconds = run(farm, jobs)
            counted = farm.document()
            for name in ("compiled", "compile_s"):
                counted[name] -= before[name]
            farm.close()
        return Outcome(nodes, len(jobs), counted, seconds)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.farm", description=__doc__)
    parser.add_argument("--graphs", type=int, default=12)
    parser.add_argument("--nodes", type=int, action="append", help="by default 1, 2 and 3")
    parser.add_argument("--share", type=float, default=0.0, help="of a core, for each node; else whole ones, in turn")
    parser.add_argument("--docs", action="store_true", help="put the table into docs/guides/farm.md")
    arguments = parser.parse_args()
    _console, say = begin(140)
    counts = arguments.nodes or [1, 2, 3]
    jobs = [graph(number) for number in range(arguments.graphs + max(counts))]
    outcomes: list[Outcome] = []
    for nodes in counts:
        outcomes.append(measured(nodes, arguments.share, jobs[arguments.graphs :], jobs[: arguments.graphs]))
        say(f"{nodes}: {outcomes[-1].seconds:.1f} s, {outcomes[-1].counted}")
    one = next((item.seconds for item in outcomes if item.nodes == 1), None)
    rows = [
        [
            str(item.nodes),
            str(item.graphs),
            str(item.counted["compiled"]),
            str(item.graphs - item.counted["compiled"]),
            f"{item.seconds:.1f}",
            f"{item.seconds / one:.2f}" if one else "-",
            f"{item.counted['compile_s'] / item.nodes / item.seconds:.0%}",
        ]
        for item in outcomes
    ]
    table = Table(TITLE.format(f"{arguments.share:g} of a core" if arguments.share else "one core"), HEADERS, rows)
    print("\n" + table.text() + "\n")
    if arguments.docs:
        write_part("`make bench-farm ARGS=--docs`", [describe_machine(), table.text()], "guides/farm.md")
    return int(any(item.counted["compiled"] < item.graphs for item in outcomes))


if __name__ == "__main__":
    sys.exit(main())
