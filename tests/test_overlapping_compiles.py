"""Tests that a worker lowers a graph while C++ compilers build the kernels of the previous graph, and that each
artifact is right.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support_graphs import Captured, captured
from support_host import prepare
from torch._inductor import codecache

from precompiled import compiler, wire
from precompiled.client.load import load_for_graph
from precompiled.store import job_phases, scratch
from precompiled.store.artifacts import Store
from precompiled.torch_internals.worker import kernel_units

pytestmark = pytest.mark.integration

X = torch.linspace(-1.0, 1.0, 24).reshape(4, 6)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    for name in ("_HEADER_DIR", "_HEADER_LOCK_DIR"):  # a job sets them for the rest of the process
        monkeypatch.setattr(codecache, name, getattr(codecache, name))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    found = Store(tmp_path / "store")
    prepare(scratch.directory(found.root))
    found.root.chmod(0o700)
    yield found
    torch._dynamo.reset()


def job(store: Store, graph: Captured, **values: Any) -> wire.Job:
    return wire.Job(
        **{
            "id": uuid.uuid4().hex,
            "key": graph.key,
            "store": str(store.root),
            "device": "cpu",
            "graph": graph.program.to_bytes(),
            "compile_threads": 2,
            "failure_ttl_s": 60.0,
            "name": "graph",
            "may_overlap": True,
            **values,
        }
    )


def in_a_thread(steps: Any) -> wire.Finished:
    found: list[wire.Finished] = []
    thread = threading.Thread(target=lambda: found.append(compiler.graph_jobs.run_to_end(steps)))
    thread.start()
    thread.join()
    return found[0]


def result(store: Store, graph: Captured) -> torch.Tensor:
    (artifact,) = store.lookup(graph.key)
    (found,) = load_for_graph(store, artifact, graph.program)(X)  # type: ignore[misc]
    return found  # type: ignore[no-any-return]


def test_two_graphs_are_lowered_before_either_is_built(store: Store) -> None:
    functions = [lambda x: (x * 2).sin() + 1, lambda x: (x * 3).cos().sum(0)]
    graphs = [captured(function, X) for function in functions]
    steps = [compiler.steps(job(store, graph)) for graph in graphs]
    for step in steps:
        assert next(step) is None, "pauses"
    assert [under_way.phase for under_way in job_phases.under_way(store.root)] == ["C++ compilers"] * 2
    for step, graph, function in zip(steps, graphs, functions, strict=True):
        assert in_a_thread(step).outcome == "published"
        torch.testing.assert_close(result(store, graph), function(X))
    (worker,) = job_phases.workers(store.root)
    for recorded in worker.jobs[-2:]:
        assert "C++ compiler" in {span.what for span in recorded.spans}, "each job has its own compilers"


def test_kernels_that_must_be_built_again_have_the_settings_of_their_own_graph(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If kernels of one unit conflict, they are built one by one. At that time, the settings of another graph may be
    active.
    """
    seen: list[bool] = []
    path = kernel_units._Unit.path
    create = kernel_units._Unit.__init__

    def fail_once(unit: kernel_units._Unit) -> Path:
        if len(unit.kernels) > 1:
            raise RuntimeError("these kernels conflict")
        return path(unit)

    def create_noted(unit: kernel_units._Unit, *arguments: Any) -> None:
        seen.append(torch._inductor.config.cpp.enable_unsafe_math_opt_flag)
        create(unit, *arguments)

    def two_kernels(x: torch.Tensor) -> torch.Tensor:
        return (x.softmax(0) @ x.T).softmax(1)

    with torch._inductor.config.patch({"cpp.enable_unsafe_math_opt_flag": True}):
        graph = captured(two_kernels, X)
    other = captured(lambda x: x + 1, X)
    monkeypatch.setattr(kernel_units._Unit, "path", fail_once)
    monkeypatch.setattr(kernel_units._Unit, "__init__", create_noted)
    first = compiler.steps(job(store, graph))
    next(first)
    units = len(seen)
    next(compiler.steps(job(store, other)))
    assert seen[units:] == [False]
    assert in_a_thread(first).outcome == "published"
    assert seen[units + 1 :] == [True, True] and units == 1, "the two kernels, one by one"
    torch.testing.assert_close(result(store, graph), two_kernels(X))


def test_no_pause_if_the_daemon_cannot_overlap_jobs_or_nothing_is_built(store: Store) -> None:
    graph, same_kernels = captured(lambda x: x * 5, X), captured(lambda x: (x * 5, x @ x.T), X)
    for made in (job(store, graph, may_overlap=False), job(store, same_kernels)):
        with pytest.raises(StopIteration) as ended:
            next(compiler.steps(made))
        assert ended.value.value.outcome == "published", ended.value.value


def test_failure_of_the_compilers_is_recorded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = captured(lambda x: x * 7, X)

    def fail(unit: kernel_units._Unit) -> Path:
        raise RuntimeError("internal compiler error")

    monkeypatch.setattr(kernel_units._Unit, "path", fail)
    steps = compiler.steps(job(store, graph))
    next(steps)
    finished = in_a_thread(steps)
    failure = store.failure(graph.key)
    assert (finished.outcome, finished.reason) == ("failed", "compile-error")
    assert failure is not None and "internal compiler error" in failure.message
