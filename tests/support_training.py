"""Support: training runs with a swap at a chosen step, compared with the same run without precompiled."""

from __future__ import annotations

import os
import select
import signal
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from support_host import TIMEOUT_S, Host

PROGRAMS = Path(__file__).parent / "programs"
# Each seed swaps at a random step and takes half a minute.
SEEDS = range(int(os.environ.get("PRECOMPILED_SEEDS", "1")))
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def run(host: Host, program: str, spec: Mapping[str, Any], env: Mapping[str, str]) -> list[dict[str, Any]]:
    """Run all ranks and return the output of each.

    If a rank fails, kills the other ranks, because these would wait forever for the failed rank. Then shows the failed
    rank's output.
    """
    rendezvous = str(host.root / f"rendezvous-{uuid.uuid4().hex}")
    clients = [
        host.start({**spec, "rank": rank, "rendezvous": rendezvous}, {**ONE_THREAD, **env}, program=PROGRAMS / program)
        for rank in range(spec.get("ranks", 1))
    ]
    by_descriptor = {os.pidfd_open(client.process.pid): client for client in clients}
    left, failed = dict(by_descriptor), False
    try:
        while left and not failed:
            ended, _, _ = select.select(list(left), [], [], TIMEOUT_S)
            assert ended, "\n".join(client.text() for client in clients)
            failed = any(left.pop(descriptor).process.wait() != 0 for descriptor in ended)
    finally:
        for descriptor in by_descriptor:
            os.close(descriptor)
        for client in left.values():
            client.process.kill()
            client.process.wait()
    # Read the failed rank first, so that its output is the error of the test.
    return [client.result() for client in sorted(clients, key=lambda client: client in left.values())]


def swapped_as_plain(host: Host, program: str, spec: Mapping[str, Any]) -> None:
    """Check that a training run with a swap has the losses of the same run without precompiled.

    ``spec`` sets the step of the swap. All graphs of the run must be swapped. The run without precompiled uses the
    backend "aot_eager", which differs from "inductor" only in rounding. The backend "eager" would differ more, because
    it leaves gradients None.
    """
    daemon = host.status().pid
    os.kill(daemon, signal.SIGSTOP)  # no graph can be compiled until the training program resumes the daemon
    try:
        ours = run(host, program, {**spec, "daemon": daemon, "tag": uuid.uuid4().hex}, {})
    finally:
        os.kill(daemon, signal.SIGCONT)
    steps = len(ours[0]["losses"])
    plain = run(host, program, {**spec, "steps": steps, "backend": "aot_eager"}, {"PRECOMPILED": "0"})
    for rank, (found, expected) in enumerate(zip(ours, plain, strict=True)):
        assert found["graphs"] and {tuple(graph[:2]) for graph in found["graphs"]} == {("compiled", "swap")}, found
        assert all(eager >= 1 and compiled >= 1 for _, _, eager, compiled in found["graphs"]), found
        torch.testing.assert_close(
            torch.tensor(found["losses"]),
            torch.tensor(expected["losses"]),
            rtol=1e-3,
            atol=1e-4,
            msg=lambda text, rank=rank: f"losses of rank {rank}: {text}",
        )
        assert found["losses"][-1] < found["losses"][0] - 0.5, "it does not train"
