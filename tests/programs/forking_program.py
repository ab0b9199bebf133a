"""A program that starts processes and threads while its graphs are looked up, pending or loaded.

Usage: forking_program.py KIND WHEN TIMES. KIND: a key of KINDS. WHEN: before|during|pending|after. "during" starts the
children while the graph is being traced and looked up. TIMES: the number of children, which run one after the other.
Prints one line of JSON: the results of the parent and of each child.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from troubled_operator import act, actions

import precompiled

X = torch.arange(6.0).reshape(2, 3)
TIMEOUT_S = 300


def function(x: torch.Tensor) -> torch.Tensor:
    return act(x * 2).sin() + 1


compiled = torch.compile(function)


def result() -> list[float]:
    return [round(float(item), 4) for item in compiled(X).flatten()]


def fork() -> Any:
    return in_fork(result)


def in_fork(action: Callable[[], Any]) -> Any:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.write(writing, json.dumps(action()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as said:
        found = said.read()
    assert os.waitpid(pid, 0)[1] == 0
    return json.loads(found)


def double_fork() -> Any:
    return in_fork(lambda: [result(), in_fork(result)])


def vfork() -> Any:
    """subprocess uses vfork, and its child runs no Python before exec."""
    text = "import json, sys; sys.path.insert(0, sys.argv[1]); import forking_program as program; "
    text += "print(json.dumps(program.in_a_child()))"
    done = subprocess.run(
        [sys.executable, "-c", text, os.path.dirname(__file__)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def in_a_child(_number: int = 0) -> list[float]:
    precompiled.enable()
    return result()


def by_multiprocessing(method: str) -> Any:
    with multiprocessing.get_context(method).Pool(2) as pool:
        return pool.map_async(in_a_child, range(2)).get(TIMEOUT_S)


class Data(torch.utils.data.Dataset[Any]):
    """``calls``: the workers call the compiled function, which most programs' workers do not."""

    def __init__(self, calls: bool) -> None:
        self.calls = calls

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(result()) if self.calls else torch.tensor([float(index)])


def loader(calls: bool) -> Any:
    data = torch.utils.data.DataLoader(Data(calls), num_workers=2, batch_size=2)
    return [[round(float(item), 4) for item in batch.flatten()] for batch in data]


def threads() -> Any:
    found: list[Any] = []
    started = [threading.Thread(target=lambda: found.append(result())) for _ in range(4)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join(TIMEOUT_S)
    return found


def fork_in_a_thread() -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(fork()))
    thread.start()
    thread.join(TIMEOUT_S)
    return found


def subinterpreter() -> Any:
    """Run modules of the standard library in a subinterpreter. A subinterpreter cannot import torch."""
    interpreters = importlib.import_module("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
    made = interpreters.create()
    interpreters.run_string(made, "import json, threading, sys; assert 'torch' not in sys.modules")
    interpreters.destroy(made)
    return []


KINDS: dict[str, Callable[[], Any]] = {
    "fork": fork,
    "double fork": double_fork,
    "vfork": vfork,
    "spawn": lambda: by_multiprocessing("spawn"),
    "forkserver": lambda: by_multiprocessing("forkserver"),
    "pool": lambda: by_multiprocessing("fork"),
    "loader": lambda: loader(False),
    "loader that calls": lambda: loader(True),
    "threads": threads,
    "fork in a thread": fork_in_a_thread,
    "subinterpreter": subinterpreter,
}


def main() -> None:
    kind, when, times = sys.argv[1:]
    precompiled.enable()
    torch.set_num_threads(1)  # torch hangs in a fork of a process that has used OpenMP's threads
    found: list[Any] = []

    def start() -> None:
        found.extend(KINDS[kind]() for _ in range(int(times)))

    if when == "before":
        start()
    if when == "during":
        # The operator's first run is an eager call within the first call of the compiled function.
        actions().append(start)
    first = result()
    if when == "pending":
        start()
    assert precompiled.wait(TIMEOUT_S)
    if when == "after":
        start()
    print(json.dumps({"parent": [first, result()], "children": found}))


if __name__ == "__main__":
    main()
