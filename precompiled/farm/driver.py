"""``python -m precompiled.farm.driver``: has nodes of a Ray cluster do tasks, for one helper; the only file with Ray.

Ray's are: which node does a task, in which order, on which node again after one was lost, where the graphs lie while
they wait. Started by farm.py, whose messages it reads from the descriptor ``--fd``; it ends with that stream. Ray may
end it.
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

RESOURCE = "precompiled"  # of Ray's, which a node that compiles has: for so many compiles at a time
CALLS = 200  # that a process of Ray's does, and its worker with it: a worker cannot unload modules and libraries
RETRIES = 2  # after a node, or a process of Ray's on it, was lost
LOOK_S = 2.0  # between two looks at who is there


class Driver:
    def __init__(self, ray: Any, sock: socket.socket) -> None:
        self._ray, self._sock = ray, sock
        self._lock = threading.Lock()  # of the stream
        self._refs: dict[int, Any] = {}
        self._compile = ray.remote(
            num_cpus=1, resources={RESOURCE: 1}, max_retries=RETRIES, max_calls=CALLS, scheduling_strategy="SPREAD"
        )(node.compile_job)  # fmt: skip

    def run(self) -> None:
        """Until the helper ends the stream."""
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
        """Tell who compiles; leave where the cluster does not say."""
        told: list[Node] | None = None
        try:
            while True:
                found = [
                    Node(item["NodeManagerHostname"], item["NodeManagerAddress"], places)
                    for item in self._ray.nodes()
                    if item["Alive"] and (places := int(item["Resources"].get(RESOURCE, 0)))
                ]
                if found != told:
                    self.tell(Nodes(found))
                    told = found
                time.sleep(LOOK_S)
        except Exception as error:  # noqa: BLE001 - whatever Ray raises
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
        except self._ray.exceptions.RayTaskError as error:  # our part of it raises nothing: it is not there
            why = str(error.cause or error)[:500]
            result = Result("refused", code="farm-environment", message=f"a node cannot run our part of it: {why}")
        except Exception as error:  # noqa: BLE001 - Ray's, of many classes: the node, its process, the cluster
            result = Result("failed", code="farm-lost", message=f"{type(error).__name__}: {_last_line(error)}")
        finally:
            self._refs.pop(task.number, None)
        self.tell(Ended(task.number, result))

    def _drop(self, number: int) -> None:
        ref = self._refs.get(number)
        if ref is not None:
            self._ray.cancel(ref, force=True)  # a compile cannot be interrupted: the process ends, and its worker


def _last_line(error: Exception) -> str:
    return str(error).strip().rpartition("\n")[2][:500]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m precompiled.farm.driver", description="Started by a helper.")
    parser.add_argument("--address", required=True)
    parser.add_argument("--fd", type=int, required=True)
    options = parser.parse_args(argv)
    sock = socket.socket(fileno=options.fd)
    sock.set_inheritable(False)
    try:
        import ray
        import ray.exceptions

        ray.init(address=options.address, log_to_driver=False)
    except ImportError as error:
        send(sock, Unusable(f"Ray cannot be imported here ({error}): {words.install('farm')}"))
        return 1
    except Exception as error:  # noqa: BLE001 - whatever Ray raises
        send(sock, Unusable(f"no cluster answers at {options.address}: {type(error).__name__}: {_last_line(error)}"))
        return 1
    Driver(ray, sock).run()
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    os._exit(status)  # threads wait for Ray, which cleans up after a driver that has gone
