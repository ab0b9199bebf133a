"""Runs tasks on nodes of a Ray cluster, for one helper (``python -m precompiled.farm.driver``).

Only this file uses Ray.

Ray chooses each task's node and the order of tasks, repeats a task whose node was lost, and stores the graphs of
waiting tasks. farm.py starts this process. The process reads messages from the descriptor ``--control-fd``, and exits
when that stream ends. Ray may end the process at any time.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from precompiled.core import words
from precompiled.farm import node
from precompiled.farm.messages import Drop, Ended, Node, Nodes, Result, Task, ToDriver, Unusable, decode, receive, send

# the Ray resource of nodes that compile; its amount is a node's number of simultaneous compiles
RESOURCE = "precompiled"
# After this many calls, a Ray process and its worker exit, because a worker cannot unload modules and libraries.
CALLS = 200
RETRIES = 2  # how often a task is repeated because its node or Ray process was lost
LOOK_S = 2.0  # seconds between two checks of the cluster's nodes
CONNECT_TRIES = 3


class Driver:
    def __init__(self, ray: Any, sock: socket.socket) -> None:
        self._ray, self._sock = ray, sock
        self._lock = threading.Lock()  # held during a write to the stream
        self._refs: dict[int, Any] = {}
        self._compile = ray.remote(
            num_cpus=1, resources={RESOURCE: 1}, max_retries=RETRIES, max_calls=CALLS, scheduling_strategy="SPREAD"
        )(node.compile_job)

    def run(self) -> None:
        """Run tasks until the helper ends the stream."""
        threading.Thread(target=self._watch, daemon=True).start()
        stream = self._sock.makefile("rb")
        while (message := receive(stream, ToDriver)) is not None:
            match message:
                case Task():
                    threading.Thread(target=self._task, args=(message,), daemon=True).start()
                case Drop(number):
                    self._drop(number)

    def tell(self, message: Nodes | Ended | Unusable) -> None:
        with self._lock:
            send(self._sock, message)

    def _watch(self) -> None:
        """Report the nodes that compile, after each change. Exits if the cluster does not answer."""
        reported: list[Node] | None = None
        try:
            while True:
                found = [
                    Node(item["NodeManagerHostname"], item["NodeManagerAddress"], places)
                    for item in self._ray.nodes()
                    if item["Alive"] and (places := int(item["Resources"].get(RESOURCE, 0)))
                ]
                if found != reported:
                    self.tell(Nodes(found))
                    reported = found
                time.sleep(LOOK_S)
        except Exception as error:  # noqa: BLE001 - Ray raises anything
            with suppress(OSError):
                self.tell(Unusable(f"the cluster does not answer: {type(error).__name__}: {_last_line(error)}"))
            os._exit(1)

    def _task(self, task: Task) -> None:
        try:
            ref = self._compile.options(name=task.name).remote(task.request)
            self._refs[task.number] = ref
            result: Result = decode(self._ray.get(ref, timeout=task.time_limit_s), Result)
        except self._ray.exceptions.GetTimeoutError:
            self._drop(task.number)
            result = Result("failed", code="farm-lost", message=f"no result within {task.time_limit_s:g} s")
        # compile_job itself raises no errors, so the node could not import it.
        except self._ray.exceptions.RayTaskError as error:
            why = str(error.cause or error)[:500]
            result = Result("refused", code="farm-environment", message=f"a node cannot run precompiled: {why}")
        except Exception as error:  # noqa: BLE001 - Ray has many classes for a lost node, process or cluster
            result = Result("failed", code="farm-lost", message=f"{type(error).__name__}: {_last_line(error)}")
        finally:
            self._refs.pop(task.number, None)
        self.tell(Ended(task.number, result))

    def _drop(self, number: int) -> None:
        ref = self._refs.get(number)
        if ref is not None:
            # A compile cannot be interrupted, so Ray kills the process and its worker.
            self._ray.cancel(ref, force=True)


def _connect(ray: Any, address: str) -> None:
    """Connect to the cluster, in several tries. For a ray:// address, a proxy starts a server for each connection. A
    server may fail at its start, but the next try gets a new server.
    """
    for tries_left in reversed(range(CONNECT_TRIES)):
        try:
            ray.init(address=address, log_to_driver=False)
            return
        except ConnectionAbortedError:  # Ray's error if the server has ended
            if not tries_left:
                raise


def _last_line(error: Exception) -> str:
    return str(error).strip().rpartition("\n")[2][:500]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m precompiled.farm.driver", description="Started by a helper.")
    parser.add_argument("--address", required=True)
    parser.add_argument("--control-fd", type=int, required=True)
    options = parser.parse_args(argv)
    sock = socket.socket(fileno=options.control_fd)
    sock.set_inheritable(False)
    try:
        import ray
        import ray.exceptions

        _connect(ray, options.address)
    except ImportError as error:
        send(sock, Unusable(f"Ray cannot be imported here ({error}): {words.install('farm')}"))
        return 1
    except Exception as error:  # noqa: BLE001 - Ray raises anything
        send(sock, Unusable(f"no cluster answers at {options.address}: {type(error).__name__}: {_last_line(error)}"))
        return 1
    Driver(ray, sock).run()
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    os._exit(status)  # do not wait for threads that wait for Ray; Ray cleans up after the driver has exited
