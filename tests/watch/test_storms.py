"""Tests of watches under many or broken edits: they always reach the last state, and never serve a stale artifact."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support_host import TIMEOUT_S, Host
from support_slow import everyday_or_slow
from support_watch import Project, sources
from test_files import in_own_user_namespace, needs_namespaces

pytestmark = [pytest.mark.fault("watch"), pytest.mark.integration]

MODEL = """
import torch
SCALE = {scale}

def f(x):
    return torch.relu(x) * SCALE

def factory():
    return f, torch.randn(16)
"""
RUN = """
import json
import torch, precompiled
from model import SCALE, f

x = torch.arange(16.0)
found = torch.compile(f)(x)
torch.testing.assert_close(found, f(x))
print(json.dumps({"scale": SCALE, "graphs": [[g.key, g.state, g.source, g.reason] for g in precompiled.report()]}))
"""


@pytest.fixture(scope="module")
def project(shared_host: Host) -> Iterator[Project]:
    found = Project(shared_host, shared_host.root / "project")
    found.write({"model.py": MODEL.format(scale=0), "run.py": RUN})
    yield found
    found.unwatch()


@pytest.fixture(scope="module")
def watch(project: Project) -> str:
    id = project.register("model:factory", memory_limit_bytes=2 << 30, time_limit_s=90.0)
    project.until_ready(id)
    return id


def expect(project: Project, watch: str, scale: int, since: float, edited: Path | None = None) -> None:
    """Check that the watch becomes ready after the edit, and that a run then uses ``scale`` and hits."""
    project.until_ready(watch, edited or project.directory / "model.py", since)
    result = project.run("run.py")
    assert (result["scale"], sources(result)) == (scale, ["hit"])


def scale_in(text: str) -> int:
    return int(re.search(r"SCALE = (\d+)", text)[1])  # type: ignore[index]


@pytest.mark.slow
def test_500_saves_in_5_seconds_end_in_the_last_state(project: Project, watch: str) -> None:
    before = project.until_ready(watch)
    compiled = project.host.stats().submitted
    path = project.directory / "model.py"
    since = time.time() - 0.5
    for number in range(1, 501):
        text = MODEL.format(scale=number)
        if number % 2:
            path.write_text(text)  # write the file in place, so that a concurrent reader may see half of it
        else:
            project.replace("model.py", text)
        time.sleep(0.01)
    expect(project, watch, 500, since)
    after = project.until_ready(watch)
    assert after.captures - before.captures <= 25, "a capture for every pause that the machine made, and no more"
    assert project.host.stats().submitted - compiled <= 3
    # Afterwards, no capture runs and no job is queued.
    assert project.host.status().queue_depth == 0


def git(directory: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "gc.auto=0", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *identity, *arguments], cwd=directory, check=True, capture_output=True, timeout=TIMEOUT_S)


@pytest.mark.slow
def test_checkout_of_5000_files_ends_in_the_last_state(project: Project, watch: str) -> None:
    directory = project.directory
    (directory / ".gitignore").write_text("__pycache__\n")
    since = time.time() - 0.5
    project.write({"model.py": MODEL.format(scale=1000)})
    many = [directory / f"many_{number}.py" for number in range(5000)]
    for path in many:
        path.write_text("A = 1\n")
    git(directory, "init")
    git(directory, "add", ".")
    git(directory, "commit", "-m", "one")
    expect(project, watch, 1000, since)
    git(directory, "checkout", "-b", "other")
    for path in many:
        path.write_text("A = 2\n")
    project.write({"model.py": MODEL.format(scale=2000)})
    git(directory, "commit", "-a", "-m", "two")
    git(directory, "checkout", "main")
    submitted = project.host.stats().submitted
    since = time.time() - 0.5
    git(directory, "checkout", "other")
    git(directory, "checkout", "main")
    expect(project, watch, 1000, since)
    assert project.host.stats().submitted - submitted <= 1, "a checkout and its reversal give no new state"
    since = time.time() - 0.5
    git(directory, "checkout", "other")
    expect(project, watch, 2000, since)


@pytest.mark.slow
def test_deleted_and_restored_file_reuses_its_artifact(project: Project, watch: str) -> None:
    path = project.directory / "model.py"
    text = path.read_text()
    entries = {entry.path.name for entry in project.host.store.all_artifacts()}
    path.unlink()
    failed = project.until(watch, lambda w: w.state == "failed")
    assert "No module named 'model'" in failed.error
    assert failed.edited == str(path)
    assert {entry.path.name for entry in project.host.store.all_artifacts()} == entries, "what was compiled stays"
    submitted = project.host.stats().submitted
    since = time.time() - 0.1
    path.write_text(text)
    expect(project, watch, scale_in(text), since)
    assert project.host.stats().submitted == submitted


BROKEN = {
    "import": ("raise ValueError('broken on purpose')\n", "ValueError: broken on purpose"),
    "syntax": ("def f(:\n", "SyntaxError"),
    "memory": ("hog = []\nwhile True:\n    hog.append(bytearray(b'x') * (64 << 20))\n", "over the limit of 2048 MiB"),
    "crash": ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "SIGSEGV"),
    "exit": ("import os\nprint('last words', flush=True)\nos._exit(7)\n", "exit status 7; its last output"),
    "hang": ("import time, subprocess\nsubprocess.Popen(['sleep', '1009'])\ntime.sleep(1009)\n", "within 90 s"),
}
EVERYDAY = ("syntax",)


@pytest.mark.parametrize("what", everyday_or_slow(BROKEN, EVERYDAY))
def test_broken_code_is_reported_and_the_next_good_save_works(project: Project, watch: str, what: str) -> None:
    good = project.until_ready(watch)
    text, said = BROKEN[what]
    before = (project.directory / "model.py").read_text()
    project.replace("model.py", text)
    failed = project.until(watch, lambda w: w.state == "failed", said)
    assert said in failed.error
    assert [graph.key for graph in failed.graphs] == [graph.key for graph in good.graphs], "the previous artifacts stay"
    if what in ("import", "syntax"):
        assert str(project.directory / "model.py") in failed.error, "where it is"
    assert said.partition(":")[0] in project.host.command("status"), "status shows it as well"
    left = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    assert "sleep 1009" not in left, "everything that it started is gone"
    since = time.time() - 0.1
    project.replace("model.py", before)
    expect(project, watch, scale_in(before), since)


SLOW = """
import os, pathlib, time
import torch

HOLD = pathlib.Path(__file__).with_name("hold")

@torch.library.custom_op("storms::slow", mutates_args=())
def slow(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@slow.register_fake
def _(x):
    # A worker (where the pool sets PRECOMPILED=0) compiles until HOLD is removed.
    while os.environ.get("PRECOMPILED") == "0" and HOLD.exists():
        time.sleep(0.05)
    return torch.empty_like(x)

def f(x):
    return slow(x) + 1

def factory():
    return f, torch.randn(16)
"""


def test_edit_ends_the_compile_that_it_makes_obsolete(project: Project) -> None:
    hold = project.directory / "hold"
    hold.touch()
    project.write({"slow.py": SLOW})
    watch = project.register("slow:factory")
    first = project.until(watch, lambda w: w.state == "compiling")
    (old,) = (graph.key for graph in first.graphs)
    worker = wait_for_job(project.host, old)
    project.save("slow.py", "+ 1", "+ 2")
    second = project.until(watch, lambda w: w.state == "compiling" and w.captures == 2 and w.graphs[0].key != old)
    (new,) = (graph.key for graph in second.graphs)
    assert wait_for_job(project.host, new) != worker, "the worker of the obsolete compile was ended"
    hold.unlink()
    project.until_ready(watch)
    assert not project.host.store.lookup(old) and project.host.store.lookup(new)


DEADLY = """
import os, signal
import torch

@torch.library.custom_op("storms::deadly", mutates_args=())
def deadly(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@deadly.register_fake
def _(x):
    if os.environ.get("PRECOMPILED") == "0":  # a worker
        os.kill(os.getpid(), signal.SIGKILL)
    return torch.empty_like(x)

def factory():
    return (lambda x: deadly(x) + 1), torch.randn(16)
"""


@pytest.mark.slow
def test_graph_that_the_daemon_quarantines_is_failed(project: Project) -> None:
    """The graph kills two workers, so the daemon quarantines it. The daemon then rejects the next submit at once."""
    project.write({"deadly.py": DEADLY, "uses.py": "from deadly import factory\n"})
    watch = project.register("uses:factory")
    first = project.until(watch, lambda w: w.state == "failed")
    assert (first.captured, first.failed) == (1, 1)
    assert first.error, "it says why"
    project.replace("uses.py", "# a comment\nfrom deadly import factory\n")
    again = project.until(watch, lambda w: w.state == "failed" and w.captures == 2)
    assert again.graphs[0].key == first.graphs[0].key
    assert "key-quarantined" in again.error


def wait_for_job(host: Host, key: str) -> int:
    """Return the pid of the worker that compiles the key."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        for worker in host.status().workers:
            if worker.job == key:
                return worker.pid
        time.sleep(0.02)
    raise AssertionError(f"{key} is not compiled")


@needs_namespaces
@pytest.mark.slow
def test_daemon_without_inotify_watches_polls_files(host: Host) -> None:
    """A daemon whose host grants no inotify watches must poll files and say so in `status`. Nothing else may change."""
    subprocess.run(
        in_own_user_namespace(
            [
                "sh",
                "-c",
                'echo 0 > /proc/sys/user/max_inotify_watches && exec "$@"',
                "-",
                sys.executable,
                "-m",
                "precompiled",
                "daemon",
                "start",
            ]
        ),
        env=host.environment(),
        check=True,
        timeout=TIMEOUT_S,
        capture_output=True,
    )
    project = Project(host, host.root / "project")
    project.write({"model.py": MODEL.format(scale=1), "run.py": RUN})
    watch = project.register("model:factory")
    project.until_ready(watch)
    (problem,) = host.status().degraded
    assert "no inotify watch" in problem and "max_user_watches" in problem
    since = time.time() - 0.5
    project.replace("model.py", MODEL.format(scale=2))
    expect(project, watch, 2, since)
