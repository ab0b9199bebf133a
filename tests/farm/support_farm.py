"""A real Ray cluster on this machine: a head that compiles nothing, and nodes that compile, each with its own store."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
from support_daemon import processes_with, wait_until
from support_host import prepare

from precompiled.store import job_phases, scratch

STORE_BYTES = 80 << 20  # the size of a node's object store in Ray


class Cluster:
    """``address``: the value for RAY_ADDRESS. ``url``: the farm's URL for hosts that are not nodes. Methods take a
    node's number.
    """

    def __init__(self, root: Path) -> None:
        from ray.cluster_utils import Cluster as Rays

        self.root = root
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._rays = Rays()
        self._rays.add_node(
            num_cpus=0, include_dashboard=False, object_store_memory=STORE_BYTES, ray_client_server_port=port
        )
        self.address: str = self._rays.address
        self.url = f"ray://127.0.0.1:{port}"
        self.nodes: list[Any] = []
        self.killed: set[int] = set()

    def add(self, *, places: int = 1, env: Mapping[str, str] | None = None) -> int:
        """Add a node with one core, and return its number."""
        number = len(self.nodes)
        store = self.root / f"node{number}"
        prepare(scratch.directory(store))
        store.chmod(0o700)
        self.nodes.append(
            self._rays.add_node(
                num_cpus=1,
                resources={"precompiled": places} if places else {},
                object_store_memory=STORE_BYTES,
                env_vars={"PRECOMPILED_CACHE_DIR": str(store), **(env or {})},
            )
        )
        return number

    def store(self, number: int) -> Path:
        return self.root / f"node{number}"

    def at_work(self, number: int) -> list[job_phases.UnderWay]:
        """Return the jobs that a node's workers compile now."""
        return job_phases.under_way(self.store(number))

    def kill(self, number: int) -> None:
        """Kill a node as a power failure does: the node sends no message."""
        self.killed.add(number)
        self._rays.remove_node(self.nodes[number], allow_graceful=False)

    def kill_server_of_a_client(self) -> bool:
        """Kill a server that the proxy of ``url`` has started for one client. Returns False if no such server runs."""
        for pid in processes_with(f"--address={self.address}"):
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if "--mode=specific-server" in process.cmdline():
                    process.kill()
                    return True
        return False

    def close(self) -> None:
        self._rays.shutdown()


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Yield a cluster. At the end, wait until all processes of the cluster have ended."""
    root = Path(tempfile.mkdtemp(prefix="pc-"))  # a short path, because Ray creates sockets there
    try:
        with mock.patch.dict(os.environ, {"RAY_TMPDIR": str(root), "RAY_USAGE_STATS_ENABLED": "0"}):
            found = Cluster(root)
            try:
                yield found
            finally:
                found.close()
        wait_until(lambda: not processes_with(f"{root}/ray"), "the processes of the cluster end")
    finally:
        shutil.rmtree(root, ignore_errors=True)
