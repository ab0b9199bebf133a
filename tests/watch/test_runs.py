"""Tests of recorded runs and the command line: an unmodified script runs again after each save, up to its first
steps.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support_host import Host
from support_watch import Project, sources

pytestmark = pytest.mark.integration

TRAIN = """
import json, os, sys, time
import torch

hparams = json.load(open(sys.argv[1]))
LAST = int(sys.argv[2]) if len(sys.argv) > 2 else 10**9
open("started", "a").write(f"{os.getpid()}\\n")
log = open(sys.argv[3], "a") if len(sys.argv) > 3 else None
model = torch.compile(torch.nn.Sequential(torch.nn.Linear(8, hparams["hidden"]), torch.nn.ReLU(),
                                          torch.nn.Linear(hparams["hidden"], 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=hparams["lr"])
for step in range(LAST):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if log:
        print(loss.item(), file=log, flush=True)
    time.sleep(0.01)  # it would run for months
if "precompiled" in sys.modules:
    import precompiled
    print(json.dumps({"graphs": [[g.key, g.state, g.source, g.reason] for g in precompiled.report()]}))
"""


@pytest.fixture(scope="module")
def project(shared_host: Host) -> Iterator[Project]:
    found = Project(shared_host, shared_host.root / "project")
    found.write({"train.py": TRAIN, "hparams.json": json.dumps({"hidden": 16, "lr": 0.1})})
    yield found
    found.unwatch()


def command_line(project: Project, *arguments: str) -> str:
    return project.host.command(*arguments, cwd=project.directory)


@pytest.fixture(scope="module")
def watch(project: Project) -> str:
    """Register a watch through the command line, and return its id."""
    said = command_line(project, "watch", "--once", "--json", "--", sys.executable, "train.py", "hparams.json")
    lines = [json.loads(line) for line in said.splitlines()]
    assert {line["event"] for line in lines} == {"watch"}
    states = [line["state"] for line in lines]
    assert states[-1] == "ready" and "capturing" in states and "compiling" in states
    return str(lines[-1]["id"])


def test_next_run_of_an_unmodified_script_hits(project: Project, watch: str) -> None:
    status = project.until_ready(watch)
    assert status.captured == 1
    assert sources(project.run("train.py", "hparams.json", "2")) == ["hit"]
    for pid in (project.directory / "started").read_text().split()[:1]:
        assert not psutil.pid_exists(int(pid)), "the recorded run goes on"


def test_edit_that_changes_no_shape_reuses_the_artifact(project: Project, watch: str) -> None:
    submitted = project.host.stats().submitted
    since = time.time() - 0.1
    path = project.save("hparams.json", "0.1", "0.2")
    status = project.until_ready(watch, path, since)
    assert (status.captured, status.reused) == (1, 1)
    assert project.host.stats().submitted == submitted


@pytest.mark.slow
def test_edit_that_changes_a_shape_is_compiled(project: Project, watch: str) -> None:
    since = time.time() - 0.1
    path = project.save("hparams.json", "16", "24")
    status = project.until_ready(watch, path, since)
    assert (status.captured, status.ready) == (1, 1)
    assert sources(project.run("train.py", "hparams.json", "2")) == ["hit"]


def test_failed_run_shows_its_traceback(project: Project, watch: str) -> None:
    before = (project.directory / "train.py").read_text()
    project.save("train.py", "loss.backward()", "loss.backwards()")
    failed = project.until(watch, lambda w: w.state == "failed")
    assert "AttributeError" in failed.error and "Traceback" in failed.error and "train.py" in failed.error
    listed = command_line(project, "watch", "--list")
    assert "AttributeError" in listed
    since = time.time() - 0.1
    project.replace("train.py", before)
    project.until_ready(watch, project.directory / "train.py", since)


def test_last_run_is_watched(project: Project, watch: str) -> None:
    """The watch of the last run must use that run's arguments, directory and environment."""
    project.run("train.py", "hparams.json", "3")
    elsewhere = project.host.command("watch", "--last", "--once", "--json", cwd=Path("/"))
    last = json.loads(elsewhere.splitlines()[-1])
    assert (last["state"], last["directory"], last["kind"]) == ("ready", str(project.directory), "run")
    assert last["name"].endswith("train.py hparams.json 3")
    assert last["reused"] == last["captured"] == 1
    # `--list` shows both watches, and `--remove` ends one of them by its id.
    listed = json.loads(command_line(project, "watch", "--list", "--json"))
    assert {w["id"] for w in listed["watches"]} >= {watch, last["id"]}
    removed = json.loads(command_line(project, "watch", "--remove", last["id"], "--json"))
    assert removed == {"removed": [last["id"]]}
    assert not project.record(last["id"]).exists()
    missing = project.host.command("watch", "--remove", last["id"], "--json", status=1)
    assert json.loads(missing)["error"]["code"] == "no-such-watch"


def test_file_that_a_run_writes_is_not_a_source(project: Project) -> None:
    """The command line names a log file, which the run writes. If the log file counted as a source, each capture would
    cause the next one.
    """
    (project.directory / "train.log").write_text("an earlier run\n")
    id = project.register(sys.executable, "train.py", "hparams.json", "1000000", "train.log", kind="run")
    assert project.until_ready(id).captures == 1
    since = time.time() - 0.1
    path = project.save("hparams.json", '"lr"', ' "lr"')
    assert project.until_ready(id, path, since).captures == 2
    assert len((project.directory / "train.log").read_text().splitlines()) > 1, "it was written"
    command_line(project, "watch", "--remove", id)


def test_wrong_arguments_exit_with_an_error_status(project: Project, tmp_path: Path) -> None:
    for arguments, status in (
        (["a:b", "--", "python"], 2),
        (["--remove"], 2),
        (["a:b", "--file", "not-there"], 2),
        (["--", "no-such-command"], 1),
    ):
        project.host.command("watch", *arguments, cwd=project.directory, status=status)


def test_entry_points_of_the_nearest_pyproject_are_watched(project: Project) -> None:
    """The entry points come from [tool.precompiled] of the nearest pyproject.toml. The watch belongs to the folder of
    this file, wherever the command runs.
    """
    root = project.host.root / "packaged"
    (root / "pkg" / "deep").mkdir(parents=True)
    (root / "pkg" / "__init__.py").touch()
    (root / "pyproject.toml").write_text('[tool.precompiled]\nwatch = ["pkg.points"]\nwatch-files = ["values.toml"]\n')
    (root / "values.toml").touch()
    (root / "pkg" / "points.py").write_text("""
import torch, precompiled

@precompiled.entry_point(fake=False)
def one():
    return (lambda x: x.sin()), torch.randn(3)

@precompiled.entry_point
def two():
    return torch.compile(lambda x: x.cos()), [torch.randn(3)]

def three():
    raise RuntimeError("not marked")
""")
    last = json.loads(project.host.command("watch", "--once", "--json", cwd=root / "pkg" / "deep").splitlines()[-1])
    assert (last["directory"], last["captured"], last["ready"]) == (str(root), 2, 2)
    record = json.loads(project.record(last["id"]).read_text())
    assert str(root / "values.toml") in record["good"]["sources"]
    assert str(root / "pkg" / "points.py") in record["good"]["sources"]
    command_line(project, "watch", "--remove", last["id"])


@pytest.mark.reason("watch-needs-own-daemon")
def test_system_daemon_refuses_watches(host: Host) -> None:
    """A watch runs a user's code, which a system daemon must not do. The error says what to do instead."""
    import os

    if os.geteuid() != 0:
        pytest.skip("LOUD: only root can start a system daemon")
    from support_daemon import DaemonUnderTest

    daemon = DaemonUnderTest(host.root / "system")
    try:
        daemon.start("--system")
        said = host.command("watch", "a:b", "--wait", "--json", "--runtime-dir", str(daemon.runtime_dir), status=1)
        error = json.loads(said)["error"]
        assert error["code"] == "watch-needs-own-daemon"
        assert "serves all users" in error["message"] and "PRECOMPILED_RUNTIME_DIR" in error["action"]
    finally:
        daemon.cleanup()
