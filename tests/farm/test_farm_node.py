"""Tests of how a node runs a job, without Ray. The node's worker checks the environment as every worker does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import torch
from support_graphs import captured
from support_host import prepare

from precompiled import wire
from precompiled.farm import node
from precompiled.farm.messages import Request, Result, decode
from precompiled.graph import environment
from precompiled.store import artifact_format as fmt
from precompiled.store import packed, scratch
from precompiled.store.artifacts import Store

pytestmark = pytest.mark.slow  # starts a worker, which imports torch

X = torch.randn(4, 6)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the store of the node."""
    found = tmp_path_factory.mktemp("node") / "store"
    prepare(scratch.directory(found))
    found.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRECOMPILED_CACHE_DIR", str(found))
        yield found
    if node._worker is not None:
        node._worker.end()
        node._worker = None


def double(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin()


def asked(change: dict[str, Any] | None = None, graph: bytes = b"", key: str = "", limit_s: float = 300.0) -> Result:
    """Return the node's result for a job of one graph. ``change`` replaces fields of the interpreter that the job
    requests.
    """
    found = captured(double, X)
    interpreter = msgspec.structs.replace(environment.interpreter_of_a_worker(), **(change or {}))
    job = wire.Job(
        id="1",
        key=key or found.key,
        store="/nowhere",
        device="cpu",
        graph=graph or found.program.to_bytes(),
        compile_threads=8,
        failure_ttl_s=1.0,
        may_park=True,
        may_overlap=True,
        offer=wire.Offer(interpreter, limit_s),
    )
    return decode(node.compile_job(wire.encode(Request(job))), Result)


def altered(**facts: str) -> bytes:
    program = json.loads(captured(double, X).program.to_bytes())
    program["environment"].update(facts)
    return json.dumps(program).encode()


def test_node_returns_its_artifact_and_later_the_one_in_its_store(root: Path) -> None:
    key = captured(double, X).key
    first = asked()
    assert (first.outcome, first.code, len(first.artifacts)) == ("compiled", "", 1) and first.node, first.message
    found = packed.unpack(first.artifacts[0], key)
    assert fmt.BUNDLE in found.files and found.manifest.key == key
    (artifact,) = Store(root).lookup(key)
    assert artifact.manifest.compiled_by["pid"] == found.manifest.compiled_by["pid"]
    assert asked().artifacts == first.artifacts, "nothing is compiled twice"


@pytest.mark.fault("remote")
@pytest.mark.parametrize(
    "change",
    [
        {"precompiled": "0.0"},
        {"torch": "2.0.0"},
        {"python": "3.1"},
        {"graph": {"cpu": "another"}},
    ],
    ids=["precompiled", "torch", "python", "cpu"],
)
def test_node_with_a_different_environment_names_the_difference(root: Path, change: dict[str, Any]) -> None:
    ((what, value),) = change.items()
    result = asked(graph=altered(**value), key="d" * 64) if what == "graph" else asked(change)
    assert (result.outcome, result.code) == ("refused", "farm-environment")
    subject = "cpu" if what == "graph" else what
    assert subject in result.message.lower() and ("another" if what == "graph" else value) in result.message


@pytest.mark.fault("remote")
def test_uncompilable_graph_is_returned_with_the_workers_error(root: Path) -> None:
    result = asked(graph=altered().replace(b'"mul"', b'"nosuch"'), key="e" * 64)
    assert (result.outcome, result.code) == ("failed", "farm-failed") and "undecodable-graph" in result.message


@pytest.mark.fault("remote")
def test_worker_over_its_time_limit_is_ended_and_replaced(root: Path) -> None:
    result = asked(key="f" * 64, limit_s=0.01)
    assert (result.outcome, result.code) == ("failed", "farm-lost") and node._worker is None
    assert asked().outcome == "compiled"


@pytest.mark.fault("remote")
def test_dead_worker_is_noticed_and_replaced(root: Path) -> None:
    """The worker's guardian keeps its end of the stream open, so the death of the worker does not end the stream."""
    assert asked().outcome == "compiled" and node._worker is not None
    worker = psutil.Process(node._worker._process.pid)
    worker.suspend()  # otherwise the worker might finish the job before it is killed
    answers: list[Result] = []
    thread = threading.Thread(target=lambda: answers.append(asked(key="a" * 64)))
    thread.start()
    worker.kill()
    thread.join(60.0)
    assert [(result.outcome, result.code) for result in answers] == [("failed", "farm-lost")], "it waits for the dead"
    assert asked().outcome == "compiled"


@pytest.mark.fault("version-skew")
def test_request_of_a_different_version_is_refused() -> None:
    result = decode(node.compile_job(b"\xc0"), Result)
    assert (result.outcome, result.code) == ("refused", "farm-environment")


def test_node_with_invalid_settings_reports_them(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECOMPILED_CACHE_DIR", "not/absolute")
    result = asked()
    assert (result.outcome, result.code) == ("refused", "farm-environment") and "absolute" in result.message
