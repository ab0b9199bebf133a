"""Tests of a watched project of four files: after an edit of each file, the next run finds everything compiled."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import psutil
import pytest
from support_host import new_host
from support_slow import everyday_or_slow
from support_watch import PROJECT, Project, sources


@pytest.fixture(scope="module")
def project() -> Iterator[Project]:
    with new_host() as host:
        host.start_daemon()
        found = Project(host, host.root / "project")
        found.write(PROJECT)
        yield found


@pytest.fixture(scope="module")
def watch(project: Project) -> str:
    id = project.register("model:factory", files=[str(project.directory / "config.json")])
    project.until_ready(id)
    return id


@pytest.mark.integration
def test_first_run_of_a_watched_project_hits(project: Project, watch: str) -> None:
    """The capture of a watch uses fake tensors, and must find the keys that the real run looks up."""
    status = project.until_ready(watch)
    assert (status.fake, status.captured, status.ready) == (True, 1, 1)
    compiled = project.host.stats().compiled
    result = project.run("run.py")
    assert sources(result) == ["hit"]
    assert result["graphs"][0][0] == status.graphs[0].key
    assert project.host.stats().compiled == compiled


EDITS = [
    ("model.py", "* 0.5", "* 0.25"),
    ("layers.py", "* 2.0", "* 3.0"),
    ("ops.py", "grad * 1.0", "grad * 1.0 + 0.0"),
    ("config.json", '"width": 8', '"width": 16'),
]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "old", "new"),
    everyday_or_slow(EDITS, EDITS[2:3]),
    ids=[name for name, _, _ in EDITS],
)
def test_edit_is_compiled_before_the_next_run(project: Project, watch: str, name: str, old: str, new: str) -> None:
    before = project.until_ready(watch)
    since = time.time() - 0.5
    path = project.save(name, old, new)
    after = project.until_ready(watch, path, since)
    assert {graph.key for graph in before.graphs}.isdisjoint(graph.key for graph in after.graphs)
    compiled = project.host.stats().compiled
    result = project.run("run.py")  # the program also compares its results with eager code
    assert sources(result) == ["hit"]
    assert [graph[0] for graph in result["graphs"]] == [graph.key for graph in after.graphs], "a stale artifact"
    assert project.host.stats().compiled == compiled


@pytest.mark.integration
def test_unrelated_edit_captures_nothing_and_a_comment_keeps_the_keys(project: Project, watch: str) -> None:
    before = project.until_ready(watch)
    compiled = project.host.stats().compiled
    project.save("unrelated.py", "41", "42")
    project.write({"new_file.py": "import os\n"})
    since = time.time() - 0.5
    path = project.save("layers.py", "class Layer", "# a comment\n\nclass Layer")
    after = project.until_ready(watch, path, since)
    assert after.captures == before.captures + 1, "the edit of an unrelated file was captured"
    assert (after.reused, after.ready) == (1, 0)
    assert [graph.key for graph in after.graphs] == [graph.key for graph in before.graphs]
    assert project.host.stats().compiled == compiled


@pytest.mark.fault("watch")
@pytest.mark.slow
def test_daemon_may_be_restarted_between_the_edit_and_the_run(project: Project, watch: str) -> None:
    """The daemon may even be killed: registrations are on disk, and the contents of the files show the edit."""
    host = project.host
    daemon = psutil.Process(host.status().pid)
    watcher = [child for child in daemon.children() if "precompiled.service.watch" in " ".join(child.cmdline())]
    daemon.send_signal(signal.SIGKILL)
    _gone, alive = psutil.wait_procs([daemon, *watcher], 60)
    assert not alive, "the watcher outlives its daemon"
    path = project.save("model.py", "self.layers(x).sum()", "self.layers(x).mean()")
    host.start_daemon()
    status = project.until_ready(watch, path)
    assert status.captures == 1
    assert sources(project.run("run.py")) == ["hit"]
    # Nothing has changed, so the next daemon captures nothing.
    daemon = psutil.Process(host.status().pid)
    daemon.terminate()
    psutil.wait_procs([daemon], 60)
    host.start_daemon()
    assert project.until_ready(watch).captures == 0


@pytest.mark.fault("watch")
@pytest.mark.slow
def test_killed_watcher_is_restarted_and_leaves_no_capture_behind(project: Project, watch: str) -> None:
    project.until_ready(watch)
    daemon = psutil.Process(project.host.status().pid)
    watcher = next(child for child in daemon.children() if "precompiled.service.watch" in " ".join(child.cmdline()))
    path = project.save("layers.py", "torch.relu(", "torch.sigmoid(")
    project.until(watch, lambda w: w.state == "capturing")
    capture = watcher.children(recursive=True)
    assert capture
    watcher.kill()
    _gone, alive = psutil.wait_procs([watcher, *capture], 60)
    assert not alive
    project.until_ready(watch, path)
    assert sources(project.run("run.py")) == ["hit"]
