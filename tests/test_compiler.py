"""Tests of each reason for which a worker publishes no artifact. The failure record must have the expected reason.

Each test passes a graph, as a client would send it, to ``compiler.run_job``, which does the whole work of a worker.
tests/e2e covers real workers. None of these tests runs a C++ compiler.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import json
import math
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support_graphs import captures
from support_host import prepare
from torch._inductor import codecache
from torch._inductor.exc import CppCompileError
from torch._inductor.output_code import MockFXGraphCacheOutput

from precompiled import compiler, wire
from precompiled.compiler import failures, graph_jobs
from precompiled.core.errors import CompileFailed
from precompiled.graph import capture
from precompiled.remote import helper_link
from precompiled.store import artifact_format as fmt
from precompiled.store import scratch
from precompiled.store.artifacts import Store
from precompiled.torch_internals.graph import graph_codec, process_groups
from precompiled.torch_internals.user_code import user_modules
from precompiled.torch_internals.worker import compile_graph as compiling

X = torch.randn(4, 6)
Y = torch.randn(4, 6)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def of_call(
    number: int, function: Callable[..., Any], *calls: tuple[Any, ...], **arguments: Any
) -> capture.SerializedGraph:
    """Returns the serialized graph of one of several calls. Values that change between the calls become symbolic."""
    found: list[capture.SerializedGraph] = []

    def backend(module: torch.fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
        found.append(capture.capture(module, {}))
        return module.forward

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, **arguments)
    for inputs in calls:
        compiled(*inputs)
    return found[number]


def run(store: Store, graph: bytes, failure_ttl_s: float = 60.0) -> str:
    """Run a job that must fail. Returns the reason, which is equal in the failure record and in the worker's reply."""
    name = uuid.uuid4().hex
    job = wire.Job(
        id=name,
        key=name * 2,
        store=str(store.root),
        device="cpu",
        graph=graph,
        compile_threads=1,
        failure_ttl_s=failure_ttl_s,
        name="graph",
    )
    finished = compiler.run_job(job)
    record = store.failure(job.key)
    assert finished.outcome == "failed" and record is not None and record.message.strip()
    assert (finished.reason, finished.message) == (record.reason, record.message)
    assert record.advice == "inline", "clients from before decision 0018 would stay eager"
    return record.reason


@pytest.fixture(autouse=True)
def headers_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores Inductor's header directories for later tests, because a job sets these directories for the rest of the
    process.
    """
    for name in ("_HEADER_DIR", "_HEADER_LOCK_DIR"):
        monkeypatch.setattr(codecache, name, getattr(codecache, name))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # restores the variable after the test: a job sets it
    found = Store(tmp_path / "store")
    prepare(scratch.directory(found.root))  # otherwise the first job would build test programs for vector units
    found.root.chmod(0o700)
    return found


@pytest.mark.reason("compile-error")
def test_exception_of_torch_is_a_compile_error(store: Store) -> None:
    (found,) = captures(torch.mm, X, Y.T)
    program = json.loads(found.program.to_bytes())
    program["inputs"]["args"][1]["shape"] = [5, 4]  # shapes that do not fit, so torch raises
    assert run(store, json.dumps(program).encode()) == "compile-error"


@pytest.mark.reason("fixed-float")
def test_artifact_for_a_single_float_value_is_refused(store: Store) -> None:
    program = of_call(1, lambda x, weight: torch.lerp(x, Y, weight), (X, 0.25), (X, 0.75))
    assert program.floats == [0.75]
    assert run(store, program.to_bytes()) == "fixed-float"


@pytest.mark.reason("aotautograd-guards")
def test_mutated_inputs_with_shared_memory_are_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """AOTAutograd guards on whether the inputs overlap. Inductor is replaced, because only AOTAutograd matters."""

    def change(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        left.add_(1)
        return left + right

    def uncompiled(module: torch.fx.GraphModule, _: list[Any], **__: Any) -> MockFXGraphCacheOutput:
        return MockFXGraphCacheOutput(module)

    monkeypatch.setattr(compiling, "compile_fx", functools.partial(compiling.compile_fx, inner_compile=uncompiled))
    whole = torch.randn(8, 6)
    program = of_call(0, change, (whole[:4], whole[4:]), dynamic=True)
    assert run(store, program.to_bytes()) == "aotautograd-guards"


@pytest.mark.reason("rank-dependent")
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_pass_that_reads_the_rank_is_refused(store: Store, one_rank: None) -> None:
    """A setting of a future torch may make a pass depend on the rank. precompiled must then refuse the artifact.

    For known settings of this kind the key contains the rank. The test removes the rank from the program, as if the
    setting were unknown.
    """

    def gathered(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ours, group = torch.distributed._functional_collectives, torch.distributed.group.WORLD
        return ours.all_gather_tensor(x, 0, group) + ours.all_gather_tensor(y, 0, group)

    with torch._inductor.config.patch(bucket_all_gathers_fx="all"):
        (found,) = captures(gathered, X, Y)
    (plain,) = captures(gathered, X, Y)
    program = json.loads(found.program.to_bytes())
    assert program["modes"]["ranks"] == {"precompiled-group-0": 0}
    assert "ranks" not in plain.program.modes
    torch.distributed.destroy_process_group()
    try:
        del program["modes"]["ranks"]
        assert run(store, json.dumps(program).encode()) == "rank-dependent"
    finally:
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)


@pytest.mark.reason("rank-dependent")
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.parametrize("ask", ["rank", "get_rank", "default"])
def test_reading_the_rank_is_recorded_even_if_the_error_is_caught(ask: str) -> None:
    from torch.distributed import distributed_c10d

    name, before = uuid.uuid4().hex, distributed_c10d._get_default_group
    with pytest.raises(CompileFailed) as raised, process_groups.stand_ins({name: 8}):
        group = distributed_c10d._resolve_process_group(name)
        assert torch.distributed.get_world_size(group) == 8
        with contextlib.suppress(CompileFailed):
            {
                "rank": group.rank,
                "get_rank": lambda: torch.distributed.get_rank(group),
                "default": torch.distributed.get_rank,
            }[ask]()
    assert raised.value.code == "rank-dependent"
    assert distributed_c10d._get_default_group is before


@pytest.mark.reason("environment-differs")
def test_worker_with_another_environment_refuses_the_graph(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    given_up: list[helper_link.Turn] = []
    monkeypatch.setattr(helper_link.Turn, "failed", lambda turn: given_up.extend([turn]))
    (found,) = captures(double, X)
    program = json.loads(found.program.to_bytes())
    program["environment"]["torch"] = "1.0.0"
    assert run(store, json.dumps(program).encode()) == "environment-differs"
    assert not given_up, "a worker of another host may have the client's environment"
    assert run(store, b"\x80junk") == "undecodable-graph" and len(given_up) == 1


@pytest.mark.reason("undecodable-graph")
@pytest.mark.parametrize("change", ["bytes", "program", "operator"])
def test_invalid_graph_bytes_are_undecodable(store: Store, change: str) -> None:
    (found,) = captures(double, X)
    program = json.loads(found.program.to_bytes())
    if change == "program":
        del program["modes"]
    elif change == "operator":
        program["graph"][0][1][1] = ["fn", "os", "system"]
    graph = b"\x80junk" if change == "bytes" else json.dumps(program).encode()
    assert run(store, graph) == "undecodable-graph"


LEAVING = """
import os, sys, torch

@torch.library.custom_op("precompiled_leaving::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2

twice.register_fake(lambda x: torch.empty_like(x))
if "PRECOMPILED_TESTS_LEAVE" in os.environ:
    sys.exit("usage: train.py DATA")
"""


def test_module_that_exits_on_import_does_not_end_the_worker(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's module may parse the command line, which differs in a worker, and exit. The worker must survive."""
    (tmp_path / "precompiled_leaving.py").write_text(LEAVING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        user_modules, "earliest_load", lambda *_: math.inf
    )  # as if the module were older than the process
    twice = importlib.import_module("precompiled_leaving").twice
    (found,) = captures(lambda x: twice(x) + 1, X)
    assert list(found.program.modules) == ["precompiled_leaving"]
    monkeypatch.delitem(sys.modules, "precompiled_leaving")
    monkeypatch.setenv("PRECOMPILED_TESTS_LEAVE", "1")
    assert run(store, found.program.to_bytes()) == "undecodable-graph"
    (failure,) = store.failures()
    assert "SystemExit: usage: train.py DATA" in failure.message


@pytest.mark.parametrize("digest", ["same", "other"])
def test_failure_names_the_operator_that_a_function_defines_after_the_import(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digest: str
) -> None:
    """A test often defines its operator in the test function. A worker imports the test's module, but runs no test."""
    (tmp_path / "precompiled_late.py").write_text(LEAVING.replace("precompiled_leaving", "precompiled_late"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        user_modules, "earliest_load", lambda *_: math.inf
    )  # as if the module were older than the process
    twice = importlib.import_module("precompiled_late").twice
    (found,) = captures(lambda x: twice(x) + 1, X)
    program = json.loads(found.program.to_bytes())
    (target,) = (node[1] for node in program["graph"][0] if node[0] == "f" and node[1][0] == "cop")
    target[2] = "late"  # no module defines this operator
    if digest == "other":
        target[5] = "0" * 64
    assert run(store, json.dumps(program).encode()) == "undecodable-graph"
    (failure,) = store.failures()
    assert "import of precompiled_late does not define the operator precompiled_late::late" in failure.message


@pytest.mark.reason("not-serializable")
def test_result_that_torch_cannot_serialize_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """No known graph compiles to a result that torch cannot serialize, so the test returns a plain callable."""
    monkeypatch.setattr(compiling, "compile_fx", lambda module, inputs, **_: module.forward)
    (found,) = captures(double, X)
    assert run(store, found.program.to_bytes()) == "not-serializable"


def test_import_that_fails_on_a_full_disk_counts_as_a_host_failure(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise CompileFailed("a module cannot be imported", code="undecodable-graph") from OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(graph_codec, "decode", fails)
    (found,) = captures(double, X)
    assert run(store, found.program.to_bytes(), failure_ttl_s=3600.0) == "undecodable-graph"
    (failure,) = store.failures()
    assert failure.ttl_s == failures.TTL_S


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (CppCompileError(["g++"], "g++: fatal error: Killed signal terminated program cc1plus"), True),
        (CppCompileError(["g++"], "error: 'tmp0' was not declared in this scope"), False),
    ],
    ids=["full", "killed", "code"],
)
def test_host_failures_do_not_prevent_the_next_compile(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: Exception, passes: bool
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(compiling, "compile_fx", fails)
    (found,) = captures(double, X)
    assert run(store, found.program.to_bytes(), failure_ttl_s=3600.0) == "compile-error"
    (failure,) = store.failures()
    assert failure.ttl_s == (failures.TTL_S if passes else 3600.0)


@pytest.mark.reason("too-many-variants")
def test_no_compile_if_all_variant_slots_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store")
    program = of_call(1, double, (X,), (torch.randn(5, 6),))
    job = wire.Job(
        id="x",
        key="ab" * 32,
        store=str(store.root),
        device="cpu",
        graph=program.to_bytes([5]),
        compile_threads=1,
        failure_ttl_s=60.0,
        name="graph",
    )
    for size in range(fmt.MAX_VARIANTS):
        manifest = fmt.Manifest(
            key=job.key,
            name="graph",
            components={},
            environment={},
            device="cpu",
            guards=f"L['t0'] == {size + 1000}",
            files={},
            compile_s=1.0,
            created=1.0,
            compiled_by={},
        )
        store.publish(fmt.Payload(manifest, {fmt.BUNDLE: b"x"}))
    monkeypatch.setattr(graph_jobs, "_compile", None)  # a compile would raise TypeError
    finished = compiler.run_job(job)
    assert (finished.outcome, finished.reason) == ("failed", "too-many-variants")


def test_failed_tuning_leaves_no_failure_record(store: Store) -> None:
    job = wire.Job(
        id="x",
        key="ab" * 32,
        store=str(store.root),
        device="cpu",
        graph=b"\x80junk",
        compile_threads=1,
        failure_ttl_s=60.0,
        name="graph",
        tune=True,
    )
    finished = compiler.run_job(job)
    assert (finished.outcome, finished.reason) == ("failed", "undecodable-graph")
    assert store.failure(job.key) is None
