"""Tests of the extra team of OpenMP threads that a client keeps while its graphs are being compiled.

After the compiles, no thread of the team may remain.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from support_daemon import wait_until
from support_session import deaf_daemon

from precompiled.torch_internals.client import openmp_threads

pytestmark = pytest.mark.integration

# The program runs in a separate process, because it counts threads and because it forks. A fork of the test process
# could not use OpenMP, because the test process has used OpenMP.
PROGRAM = """
import os, threading, time
import torch
from precompiled.torch_internals.client import openmp_threads as openmp

def threads():
    return len(os.listdir("/proc/self/task"))

def ours():
    return [thread.name for thread in threading.enumerate() if thread.name == "precompiled-pace"]

def until(condition):
    deadline = time.monotonic() + 60
    while not condition():  # a thread is gone from /proc a moment after it has been waited for
        assert time.monotonic() < deadline, threads()
        time.sleep(0.001)
    return True

THREADS = max(2, len(os.sched_getaffinity(0)))
torch.set_num_threads(THREADS)
before = threads()
"""


def says(code: str, **environment: str) -> str:
    left = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM + code],
        # The program counts threads. numpy's threads would end before a fork and start again after it.
        env={**left, "OPENBLAS_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_thread_team_exists_only_while_graphs_are_compiled() -> None:
    assert (
        says("""
for _ in range(3):
    openmp.beside_compile(torch.get_num_threads())
    openmp.beside_compile(torch.get_num_threads())
    assert until(lambda: threads() == before + 2), threads()  # the leader, and the one that it leads
    openmp.beside_compile(0)
    openmp.beside_compile(0)
    assert until(lambda: threads() == before and not ours())
print("ended")
""")
        == "ended"
    )


def test_a_runtime_counts_more_threads_than_cores() -> None:
    """Waiting OpenMP threads sleep, instead of spinning, only if OpenMP counts more threads than cores.

    The threads must also sleep in a program that has one thread less than the host has cores.
    """
    assert (
        says("""
sizes = []
openmp._Team = lambda runtime, size: sizes.append((size, runtime.cores))
for count in (THREADS, max(2, THREADS - 1)):
    torch.set_num_threads(count)
    openmp.beside_compile(torch.get_num_threads())
    size, cores = sizes.pop()
    assert count + size - 1 > cores, (count, size, cores)
print("more")
""")
        == "more"
    )


@pytest.mark.parametrize(
    "environment", [{"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "5000"}, {"KMP_BLOCKTIME": "1"}]
)
def test_wait_policy_set_by_the_user_is_kept(environment: dict[str, str]) -> None:
    code = "openmp.beside_compile(torch.get_num_threads())\nprint(threads() - before, ours())"
    assert says(code, **environment) == "0 []"


def test_program_with_one_thread_gets_no_team() -> None:
    assert (
        says("""
torch.set_num_threads(1)
openmp.beside_compile(torch.get_num_threads())
print(threads() - before, ours())
""")
        == "0 []"
    )


@pytest.mark.parametrize(("cores", "team"), [(1, True), (3, True), (4, False), (64, False)])
def test_team_exists_only_if_the_program_uses_most_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, team: bool
) -> None:
    for name in openmp_threads.SAID:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(openmp_threads._Runtime, "cores", cores)
    monkeypatch.setattr(openmp_threads, "_Team", lambda runtime, size: size)
    assert (openmp_threads._begin(2) is not None) == team


def test_process_without_openmp_gets_no_team() -> None:
    code = "del openmp._Runtime.gather\nopenmp.torch.__file__ = '/nowhere/torch/__init__.py'\n"
    code += "openmp.ctypes.CDLL = lambda name, CDLL=openmp.ctypes.CDLL: CDLL('libm.so.6')\n"
    assert says(code + "openmp.beside_compile(torch.get_num_threads())\nprint(threads() - before, ours())") == "0 []"


@pytest.mark.fault("forks")
def test_forked_child_has_no_thread_of_the_team() -> None:
    """A fork has only one thread. If the fork's runtime counted the team's threads, a wait for them would not end."""
    assert (
        says("""
openmp.beside_compile(torch.get_num_threads())
child = os.fork()
if child == 0:
    assert openmp._team is None and threads() == 1, threads()
    torch.ones(1 << 20).add(1)  # with a team of the child's own
    assert until(lambda: threads() == THREADS)
    openmp.beside_compile(torch.get_num_threads())
    assert until(lambda: threads() == THREADS + 2)
    openmp.beside_compile(0)
    assert until(lambda: threads() == THREADS)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert until(lambda: threads() == before + 2), "the parent's is there again"
openmp.beside_compile(0)
assert until(lambda: threads() == before)
print("both")
""")
        == "both"
    )


def test_thread_team_exists_while_a_graph_is_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in openmp_threads.SAID:
        monkeypatch.delenv(name, raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with deaf_daemon() as here:
            here.call(lambda x: x * 2, torch.ones(3))
            wait_until(lambda: openmp_threads._team is not None, "a team beside the compile")
            (awaited,) = here.session.pending._awaited.values()
            here.session.pending.abandon(awaited)
            wait_until(lambda: openmp_threads._team is None, "its end")
    finally:
        torch.set_num_threads(threads)
