"""Tests of each reason for which a client runs a graph without an artifact. Each reason is reported and counted, and
the results equal those of eager code.

This process is the client. The graphs, the store, the socket and the daemon are real. The daemon's worker has no
compiler (support_daemon.py) and fails on real graphs, which gives these tests the reason ``compile-failed``.
"""

from __future__ import annotations

import logging
import os
import random
import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support_daemon import DaemonUnderTest, running_daemon, wait_until
from support_double import X, call, double, no_descriptors, only
from support_host import prepare
from support_session import ThisProcess, deaf_daemon, this_process
from torch.utils.checkpoint import checkpoint

from precompiled import routing
from precompiled.client import pending, submit
from precompiled.client.dispatch import Dispatch
from precompiled.client.ledger import GraphCalls, GraphReport
from precompiled.client.process import PROCESS
from precompiled.client.submit import compile_inline
from precompiled.core.errors import ConfigError, NotServed, PrecompiledError
from precompiled.core.reasons import read_reasons
from precompiled.graph import capture, environment
from precompiled.store import artifact_format as fmt
from precompiled.store import run_records, unfit
from precompiled.store.artifacts import Store
from precompiled.torch_internals.client import inductor_backend, inductor_route
from precompiled.torch_internals.eager.stand_in import StandIn
from precompiled.torch_internals.inductor import retained_graphs
from precompiled.torch_internals.patches import Patches
from precompiled.torch_internals.worker import compile_graph as compiling


@pytest.fixture
def here() -> Iterator[ThisProcess]:
    with this_process() as found:
        yield found


# ---------------------------------------------------------------- the store


def plant(here: ThisProcess, **changes: Any) -> tuple[Store, Path]:
    """For the graph of ``double``, publish a well-formed artifact whose bundle torch cannot load."""
    key = call(here).key
    here.counted("bypassed")
    manifest = fmt.Manifest(
        key=key,
        name="double",
        components={"graph": "x"},
        environment={},
        device="cpu",
        guards="",
        files={},
        compile_s=1.0,
        created=1.0,
        compiled_by={},
        **changes,
    )
    store = here.session.store
    return store, store.publish(fmt.Payload(manifest, {fmt.BUNDLE: b"no pickle of torch's"})).path


def is_made_anew(here: ThisProcess, code: str) -> None:
    """Check that a call reports the artifact with ``code`` and then treats the graph as a miss. In mode lookup, a miss
    is compiled in process.
    """
    graph = call(here)
    assert (graph.state, graph.source, graph.reason) == ("bypassed", "inline", "lookup-only")
    assert here.counted("fallbacks") == {code: 1}


@pytest.mark.reason("artifact-unloadable")
def test_unloadable_artifact_is_quarantined_and_recompiled(here: ThisProcess) -> None:
    store, path = plant(here)
    is_made_anew(here, "artifact-unloadable")
    assert not path.exists() and "torch cannot load" in next(store.quarantined.glob("*.reason")).read_text()
    assert list(store.quarantined.glob(f"*{unfit.NOTE_SUFFIX}")), "no remote is to bring it again"


@pytest.mark.reason("artifact-corrupt")
def test_altered_artifact_is_quarantined_and_recompiled(here: ThisProcess) -> None:
    store, path = plant(here)
    (path / fmt.BUNDLE).write_bytes(b"no pickle of torch'Z")
    is_made_anew(here, "artifact-corrupt")
    assert "digest" in next(store.quarantined.glob("*.reason")).read_text()
    assert not list(store.quarantined.glob(f"*{unfit.NOTE_SUFFIX}")), "a remote may bring it again"


@pytest.mark.reason("artifact-evicted")
def test_artifact_evicted_during_its_load_is_a_miss(here: ThisProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    _, path = plant(here)
    read = Store.read_files

    def late(self: Store, entry: Any) -> Any:
        shutil.rmtree(path)
        return read(self, entry)

    monkeypatch.setattr(Store, "read_files", late)
    is_made_anew(here, "artifact-evicted")


@pytest.mark.reason("store-untrusted")
def test_store_that_others_can_write_is_not_used(here: ThisProcess) -> None:
    store, _ = plant(here)
    store.artifacts.chmod(0o777)
    graph = call(here)
    assert (graph.state, graph.source, graph.reason) == ("bypassed", "inline", "store-untrusted")
    assert "chmod" in graph.message and here.counted("fallbacks") == {"store-untrusted": 1}


# ---------------------------------------------------------------- no daemon, or a daemon that does not answer


@pytest.mark.reason("no-daemon")
def test_without_a_daemon_graphs_compile_in_process_with_one_warning() -> None:
    with this_process({"PRECOMPILED_MODE": "eager"}) as here:
        with pytest.warns(RuntimeWarning, match=r"compiles in process \(no-daemon\)") as warned:
            for factor in (2, 3):
                here.call(lambda x, factor=factor: x * factor, X)
        assert len([item for item in warned if "precompiled" in str(item.message)]) == 1
        assert [(graph.state, graph.source, graph.reason) for graph in here.reports()] == [
            ("bypassed", "inline", "no-daemon")
        ] * 2
        assert "precompiled daemon start" in here.reports()[0].message
        assert here.counted("fallbacks") == {"no-daemon": 2}


@pytest.mark.reason("compile-error", "worker-only-error", "aliased-mutation")
@pytest.mark.parametrize("when", ["before", "while it is awaited", "while it is waited for"])
@pytest.mark.parametrize("code", ["compile-error", "aliased-mutation"])
def test_graph_with_a_failure_record_is_compiled_in_process(code: str, when: str) -> None:
    """A graph with a failure record is compiled in process: at once while the frame is being traced, otherwise at the
    next call. If torch itself raised in the worker, the graph is reported as worker-only-error.
    """
    alone = {"worker-only-error": 1} if code == "compile-error" else {}
    reason = "worker-only-error" if alone else code
    with recorded(code, when) as (here, publish):
        torch._dynamo.reset()
        compiled = torch.compile(double, backend="precompiled")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            torch.testing.assert_close(compiled(X), X * 2)
            if when == "while it is awaited":
                assert only(here).state == "pending"
                publish()
                assert here.session.pending.wait(30)
                assert (only(here).state, only(here).source, only(here).reason) == ("bypassed", None, code)
                torch.testing.assert_close(compiled(X), X * 2)
        graph = only(here)
        assert (graph.state, graph.source, graph.reason) == ("bypassed", "inline", reason)
        assert "Here is where" in graph.message
        counts = here.session.ledger.take_counts()
        kind = "bypassed" if when == "before" and not alone else "fallbacks"
        assert counts[kind] == {code: 1, **alone}


@contextmanager
def recorded(code: str, when: str) -> Iterator[tuple[ThisProcess, Callable[[], None]]]:
    """Yield a client whose graph of ``double`` gets a failure record at the moment ``when``, and a function that
    publishes the record.
    """
    with this_process() as here:
        key = call(here).key
    with deaf_daemon(PRECOMPILED_MODE="wait" if when == "while it is waited for" else "eager") as here:
        record = fmt.Failure(key, "double", code, "RuntimeError: no\nHere is where.", time.time() + 1.0, 3600.0)

        def publish() -> None:
            here.session.store.publish_failure(record)

        if when == "before":
            publish()
        if when == "while it is waited for":
            submit_to_daemon = here.session.connection.submit

            def submitted(*arguments: Any) -> None:
                submit_to_daemon(*arguments)
                publish()

            here.session.connection.submit = submitted  # type: ignore[method-assign]
        yield here, publish


# ---------------------------------------------------------------- what torch raises


class Refusal(RuntimeError):
    """The exception that a compile raises in these tests."""


def raises(error: Exception) -> Callable[..., Any]:
    def compile_it(*_: Any, **__: Any) -> Any:
        raise error

    return compile_it


@pytest.mark.parametrize("when", ["before", "while it is waited for"])
def test_compile_error_is_raised_while_the_frame_is_traced(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded("compile-error", when) as (here, _):
        monkeypatch.setattr(inductor_backend, "compile_in_process", raises(Refusal("torch says no")))
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="torch says no") as caught:
                here.call(double, X)
        assert type(caught.value.inner_exception) is Refusal and caught.value.inner_exception.__context__ is None
        graph = only(here)
        assert (graph.state, graph.source, graph.reason) == ("bypassed", None, "compile-error")
        (process,) = run_records.processes(here.session.store.root)
        (kept,) = process.graphs.values()
        assert (kept["state"], kept["reason"]) == ("bypassed", "compile-error"), "`explain --run last` shows the graph"
        if when == "before":
            said = rf"a compile .* ago failed \(`precompiled daemon retry {graph.key[:12]}` compiles again\): "
            assert re.match(said, kept["message"]), "a failure record is the reason"
        assert here.counted("fallbacks") == {"compile-error": 1}, "torch's error is not precompiled's failure"
        with torch._dynamo.config.patch(suppress_errors=True):
            torch.testing.assert_close(here.call(double, X), X * 2)


@contextmanager
def compiled_late(
    monkeypatch: pytest.MonkeyPatch, captured: Exception, given: Exception | None
) -> Iterator[tuple[ThisProcess, Callable[[torch.Tensor], torch.Tensor]]]:
    """Yield a client and a graph that is compiled at its next call.

    The client first compiles the captured graph. This compile raises the error ``captured``. Then the client compiles
    Dynamo's own graph. This compile raises the error ``given``, or succeeds if ``given`` is None.
    """
    with recorded("compile-error", "while it is awaited") as (here, publish):
        monkeypatch.setattr(submit, "compile_inline", compile_inline)
        monkeypatch.setattr(compiling, "compile_here", raises(captured))
        if given is not None:
            monkeypatch.setattr(inductor_backend, "compile_in_process", raises(given))
        torch._dynamo.reset()
        compiled = torch.compile(double, backend="precompiled")
        torch.testing.assert_close(compiled(X), X * 2)
        publish()
        assert here.session.pending.wait(30)
        yield here, compiled


def test_compile_error_is_raised_at_each_later_call(monkeypatch: pytest.MonkeyPatch) -> None:
    with compiled_late(monkeypatch, Refusal("torch says no"), Refusal("torch says no")) as (here, compiled):
        for _ in range(3):
            with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
                compiled(X)
            assert str(caught.value).startswith("backend='inductor' raised:\nRefusal: torch says no")
            assert caught.value.__context__ is None
        assert (only(here).state, only(here).source, only(here).reason) == ("bypassed", None, "compile-error")
        assert here.counted("fallbacks") == {"compile-error": 1}


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (IndexError("dim out of range"), IndexError if torch.__version__ >= "2.13" else RuntimeError),
        (torch._dynamo.exc.SkipFrame("another way"), None),
        (torch._subclasses.fake_tensor.DynamicOutputShapeException(None), None),
    ],
)
def test_backend_error_is_treated_as_dynamo_treats_it(
    monkeypatch: pytest.MonkeyPatch, error: Exception, raised: type[Exception] | None
) -> None:
    with compiled_late(monkeypatch, error, error) as (_, compiled):
        for _ in range(2):
            if raised is None:
                torch.testing.assert_close(compiled(X), X * 2)
            else:
                with pytest.raises(raised, match="dim out of range"):
                    compiled(X)


def test_suppressed_errors_are_logged_as_by_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        compiled_late(monkeypatch, Refusal("torch says no"), Refusal("torch says no")) as (_, compiled),
        torch._dynamo.config.patch(suppress_errors=True),
    ):
        monkeypatch.setattr(logging.getLogger("torch"), "propagate", True)
        for _ in range(2):
            torch.testing.assert_close(compiled(X), X * 2)
        assert caplog.text.count("WON'T CONVERT double") == 1 and "torch says no" in caplog.text


def test_error_in_the_capture_is_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in precompiled's capture must not reach the program: Dynamo's own graph compiles and serves the calls."""
    with compiled_late(monkeypatch, KeyError("ours"), None) as (here, compiled):
        torch.testing.assert_close(compiled(X), X * 2)
        assert len(here.in_process) == 1
        assert (only(here).source, only(here).reason) == ("inline", "worker-only-error")
        assert here.counted("fallbacks") == {"compile-error": 1, "worker-only-error": 1}


def test_two_different_compile_errors_are_logged_not_raised(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with compiled_late(monkeypatch, KeyError("ours"), Refusal("torch says no")) as (here, compiled):
        for _ in range(2):
            torch.testing.assert_close(compiled(X), X * 2)
        assert (only(here).source, only(here).reason) == (None, "compile-error")
        assert "torch says no" in caplog.text and "KeyError" in caplog.text


@pytest.mark.reason("internal-error")
def test_internal_error_at_a_submit_compiles_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with deaf_daemon() as here:
        monkeypatch.setattr(here.session.connection, "submit", no_descriptors)
        graph = call(here)
        assert (graph.state, graph.source, graph.reason) == ("bypassed", "inline", "internal-error")
        assert "Too many open files" in graph.message and here.counted("fallbacks") == {"internal-error": 1}


def compiled_at_its_next_call(here: ThisProcess, reason: str) -> GraphReport:
    torch._dynamo.reset()
    compiled = torch.compile(double, backend="precompiled")
    torch.testing.assert_close(compiled(X), X * 2)
    assert here.session.pending.wait(30)
    torch.testing.assert_close(compiled(X), X * 2)
    graph = only(here)
    assert (graph.state, graph.source, graph.reason) == ("bypassed", "inline", reason)
    return graph


def test_pending_graph_is_compiled_in_process_if_the_daemon_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "ALONE_S", 0.05)
    with deaf_daemon() as here:
        compiled_at_its_next_call(here, "no-daemon")
        assert here.counted("fallbacks") == {"no-daemon": 1}


@pytest.mark.reason("swap-thread")
def test_failed_swap_thread_leads_to_a_compile_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with deaf_daemon() as here:
        monkeypatch.setattr(here.session.connection, "ensure_running", no_descriptors)
        graph = compiled_at_its_next_call(here, "swap-thread")
        assert "Too many open files" in graph.message and here.counted("fallbacks") == {"swap-thread": 1}


def test_retrace_waits_for_a_call_that_no_checkpoint_repeats() -> None:
    """A checkpoint compares the tensors of its two runs, so either both runs must be eager or both compiled."""
    x, weight = torch.randn(6, 6), torch.randn(6, 6, requires_grad=True)
    function = torch.compile(lambda x, weight: torch.sin(x @ weight), backend="precompiled")

    def step() -> torch.Tensor | None:
        weight.grad = None
        checkpoint(function, x * 1, weight, use_reentrant=False).sum().backward()
        return weight.grad

    with deaf_daemon() as here, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        wanted = step()
        (item,) = here.session.pending._awaited.values()
        record = fmt.Failure(item.key, "f", "size-guards", "It holds for some sizes.", time.time(), 3600.0)
        here.session.store.publish_failure(record)
        here.session.pending._give_up(item, record.reason, record.message)
        for _ in range(2):
            torch.testing.assert_close(step(), wanted)
        assert len(here.reports()) == 1 and not here.in_process
        for _ in range(2):
            function(x, weight)
        assert [graph.reason for graph in here.reports()] == ["size-guards"] * 2 and len(here.in_process) == 1
        torch.testing.assert_close(step(), wanted)


def perceptron(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x @ first) @ second


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:a graph is compiled in process:RuntimeWarning")
def test_late_compile_does_not_draw_the_programs_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor measures kernels on random tensors, which must not change the program's random state."""
    original, drawn = retained_graphs.inner_compile, []

    def draws(*args: Any, **options: Any) -> Any:
        drawn.append((torch.rand(3), random.random()))
        return original(*args, **options)

    with deaf_daemon() as here:
        monkeypatch.setattr(submit, "compile_inline", compile_inline)
        monkeypatch.setattr(retained_graphs, "inner_compile", draws)
        compiled = torch.compile(double, backend="precompiled")
        compiled(X)
        (item,) = here.session.pending._awaited.values()
        here.session.pending._give_up(item, "artifact-evicted", "It was removed three times.")
        before = torch.get_rng_state(), random.getstate()
        compiled(X)
        assert only(here).source == "inline" and drawn
        torch.testing.assert_close(torch.get_rng_state(), before[0])
        assert random.getstate() == before[1]


@pytest.mark.filterwarnings("ignore:a graph is compiled in process:RuntimeWarning")
def test_late_compile_supports_retain_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a graph is compiled after eager calls, its backward is compiled before the backward's first call. The compiled
    backward must not overwrite saved tensors that a second backward needs.
    """
    torch.manual_seed(0)
    given = [torch.randn(shape, requires_grad=True) for shape in ((4, 6), (6, 8), (8, 2))]

    def gradients(function: Callable[..., torch.Tensor]) -> list[torch.Tensor | None]:
        for value in given:
            value.grad = None
        loss = function(*given).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        return [value.grad for value in given]

    with deaf_daemon() as here:
        prepare(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]))
        monkeypatch.setattr(submit, "compile_inline", compile_inline)
        compiled = torch.compile(perceptron, backend="precompiled")
        expected = gradients(compiled)
        (item,) = here.session.pending._awaited.values()
        here.session.pending._give_up(item, "artifact-evicted", "It was removed three times.")
        for _ in range(2):
            # CPUs sum in different orders, hence the tolerances. Overwritten tensors would differ by far more.
            torch.testing.assert_close(gradients(compiled), expected, rtol=1e-4, atol=1e-4)
        assert only(here).source == "inline" and here.in_process == []
        assert item.calls.snapshot().calls_compiled


def test_graph_for_an_absent_device_is_not_compiled_in_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PRECOMPILED_TARGET", "h100")
    with deaf_daemon() as here:
        call(here)
        (item,) = here.session.pending._awaited.values()
        here.session.pending._give_up(item, "artifact-evicted", "It was removed three times.")
        torch.testing.assert_close(item.dispatch.call(X)[0], X * 2)
        assert here.in_process == []


# ---------------------------------------------------------------- a daemon that refuses


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    with running_daemon(tmp_path_factory.mktemp("d")) as running:
        yield running


@contextmanager
def with_daemon(daemon: DaemonUnderTest, monkeypatch: pytest.MonkeyPatch, **settings: str) -> Iterator[ThisProcess]:
    monkeypatch.setattr(environment, "interpreter_of_a_worker", lambda modules=None: daemon.environment())
    settings = {"PRECOMPILED_MODE": "eager", "PRECOMPILED_RUNTIME_DIR": str(daemon.runtime_dir), **settings}
    with this_process(settings) as here:
        yield here


def test_daemon_that_starts_late_serves_later_graphs(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = DaemonUnderTest(tmp_path_factory.mktemp("d"))
    with with_daemon(late, monkeypatch) as here:
        with pytest.warns(RuntimeWarning, match="no-daemon"):
            here.call(double, X)
        assert here.session.daemon.problem() is not None
        late.start()
        try:
            assert here.session.daemon.problem() is None
        finally:
            late.stop()


@pytest.mark.reason("compile-failed")
def test_rejected_graph_is_compiled_in_process_and_counted_by_reason(
    daemon: DaemonUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    with with_daemon(daemon, monkeypatch) as here:
        before = daemon.stats()
        call(here)
        assert here.session.pending.wait(30)
        graph = only(here)
        assert (graph.state, graph.reason) == ("bypassed", "compile-failed") and "KeyError" in graph.message
        here.call(double, torch.randn(4, 6), options={"fx_wrapper": True})
        assert here.reports()[-1].reason == "fx-wrapper"
        here.session.tell_counts()
        stats = wait_until(lambda: (found := daemon.stats()).bypassed != before.bypassed and found, "the counts arrive")
        assert stats.fallbacks == {**before.fallbacks, "compile-failed": 1} and stats.bypassed == {"fx-wrapper": 1}


@pytest.mark.reason("too-large")
def test_graph_above_the_size_limit_is_compiled_in_process(
    daemon: DaemonUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    with with_daemon(daemon, monkeypatch, PRECOMPILED_MAX_GRAPH_BYTES="10") as here:
        call(here)
        assert here.session.pending.wait(30)
        graph = only(here)
        assert (graph.state, graph.reason) == ("bypassed", "too-large") and "max_graph_bytes" in graph.message
        assert here.counted("fallbacks") == {"too-large": 1}


# ---------------------------------------------------------------- graphs that must not run eager


def reduced(x: torch.Tensor) -> torch.Tensor:
    ours = torch.distributed._functional_collectives
    return ours.all_reduce(x, "sum", torch.distributed.group.WORLD) + 1


@pytest.mark.reason("no-stand-in")
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.usefixtures("one_rank")
def test_collectives_wait_then_compile_in_process() -> None:
    with deaf_daemon(PRECOMPILED_WAIT_S="0.01") as here:
        torch.testing.assert_close(here.call(reduced, X), X + 1)
        assert "all ranks must run its collectives either eager or compiled" in here.was_refused("no-stand-in")
        assert here.session.pending.wait(30), "it is still awaited"


@pytest.mark.reason("worker-only-error")
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.usefixtures("one_rank")
def test_failed_compile_of_collectives_is_reported_and_done_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks must not mix eager and compiled collectives, so this process compiles the graph when the worker has failed.
    The warning must say that this process compiles.
    """
    with deaf_daemon(PRECOMPILED_WAIT_S="1000") as here:

        def fails(_: Any, message: Any, *__: Any) -> None:
            record = fmt.Failure(message.key, message.name, "compile-error", "It failed.", time.time(), 3600.0)
            here.session.store.prepare()
            here.session.store.publish_failure(record)

        monkeypatch.setattr(type(here.session.connection), "submit", fails)
        with pytest.warns(RuntimeWarning, match="reduced.*, so this process compiles it .worker-only-error.: It f"):
            torch.testing.assert_close(here.call(reduced, X), X + 1)
        (graph,) = here.reports()
        assert (graph.state, graph.source, graph.reason) == ("bypassed", "inline", "worker-only-error")


@pytest.mark.reason("size-guards")
def test_artifact_with_invalid_guards_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph whose artifact has invalid guards is compiled in process and does not stay eager. In the first round the
    graph awaits the artifact; in the second round it finds the artifact in the store.
    """
    with deaf_daemon() as here:
        store = here.session.store

        def published(_: Any, message: Any, *__: Any) -> None:
            manifest = fmt.Manifest(
                key=message.key,
                name="double",
                components={"graph": "x"},
                environment={},
                device="cpu",
                guards="L['t4'] == 5",
                files={},
                compile_s=1.0,
                created=1.0,
                compiled_by={},
            )
            store.prepare()
            store.publish(fmt.Payload(manifest, {fmt.BUNDLE: b"never loaded"}))

        monkeypatch.setattr(type(here.session.connection), "submit", published)
        for _ in range(2):
            torch._dynamo.reset()
            compiled = torch.compile(double, backend="precompiled")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                compiled(X)
                assert here.session.pending.wait(30)
            torch.testing.assert_close(compiled(X), X * 2)
            graph = here.reports()[-1]
            assert (graph.state, graph.source, graph.reason) == ("bypassed", "inline", "size-guards")


@pytest.mark.reason("no-stand-in")
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.usefixtures("one_rank")
def test_collectives_with_symbolic_sizes_wait_too() -> None:
    with deaf_daemon(PRECOMPILED_WAIT_S="0.01") as here:
        x = X.clone()
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(here.call(reduced, x), x + 1)
        assert "all ranks must run its collectives either eager or compiled" in here.was_refused("no-stand-in")
        assert here.session.pending.wait(30), "it is still awaited"


def runs_eager(*_: Any) -> Any:
    raise AssertionError("it ran eager, while other ranks may run compiled")


@pytest.mark.parametrize("code", ["lookup-only", "no-daemon", "too-many-variants"])
def test_sizes_that_cannot_be_submitted_are_compiled_in_process(code: str) -> None:
    """A call with new sizes cannot submit a job in three cases: in mode lookup, if no daemon runs, and above the
    maximum number of variants. If the graph must not run eager either, the client must compile it in process.
    """
    programs: list[capture.SerializedGraph] = []

    def captured(module: torch.fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
        programs.append(capture.capture(module, {}))
        return module.forward

    mode = {"PRECOMPILED_MODE": "lookup" if code == "lookup-only" else "eager"}
    with deaf_daemon(**mode) if code == "too-many-variants" else this_process(mode) as here:
        x = X.clone()
        torch._dynamo.mark_dynamic(x, 0)
        here.call(double, x, backend=captured)
        (program,) = programs
        calls = GraphCalls(GraphReport(id="1", name="double [0/0]"))
        submitter = submit.Submitter(here.session, calls, lambda: "")
        dispatch = Dispatch(
            calls,
            runs_eager,
            program.size_inputs,
            lambda sizes: None,
            waits=True,  # type: ignore[arg-type]
            without_a_job=lambda sizes: submitter.without_a_job(program, dispatch, sizes),
        )
        dispatch.serve_with(runs_eager, lambda sizes: sizes == [1])
        for _ in range(2):
            torch.testing.assert_close(dispatch.call(4, X)[0], X * 2)
        assert here.counted("fallbacks") == {code: 1}


# ---------------------------------------------------------------- PRECOMPILED_REQUIRE=1


def raised(here: ThisProcess, **compile_arguments: Any) -> NotServed:
    with pytest.raises(NotServed) as failed:
        here.call(double, X, **compile_arguments)
    places = [entry.path for entry in failed.traceback]
    assert not [path for path in places if "/precompiled/" in str(path)] and len(places) < 6, places
    return failed.value


def says_what_to_do(error: NotServed, code: str) -> None:
    assert error.code == code and f"({code})" in str(error) and f"`precompiled explain {code}`" in error.action
    advice = read_reasons()[code].plain_advice.rstrip(".")
    assert not advice or str(error).count(advice) == 1
    assert error.graph.startswith("double [") and error.graph in error.message


def test_require_raises_a_bypass() -> None:
    with this_process({"PRECOMPILED_REQUIRE": "1"}) as here:
        error = raised(here, options={"fx_wrapper": True})
        says_what_to_do(error, "fx-wrapper")
        assert "its code cannot be stored" in error.message
        counts = here.session.ledger.take_counts()
        assert not here.in_process and counts["not_served"] == {"fx-wrapper": 1} and "bypassed" not in counts
        assert (only(here).state, only(here).reason) == ("failed", "fx-wrapper")


def test_require_in_lookup_mode_raises_a_miss() -> None:
    with this_process({"PRECOMPILED_REQUIRE": "1"}) as here:
        says_what_to_do(raised(here), "lookup-only")
        (kept,) = run_records.programs(here.session.store.root)
        assert kept == only(here).key


def test_require_raises_a_fallback() -> None:
    with this_process({"PRECOMPILED_REQUIRE": "1", "PRECOMPILED_MODE": "eager"}) as here:
        says_what_to_do(raised(here), "no-daemon")
        assert not here.in_process and here.counted("not_served") == {"no-daemon": 1}


def test_require_raises_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with deaf_daemon(PRECOMPILED_REQUIRE="1") as here:
        monkeypatch.setattr(here.session.connection, "submit", no_descriptors)
        error = raised(here)
        says_what_to_do(error, "internal-error")
        assert isinstance(error.__context__, OSError)  # torch.compile resets ``__cause__``


def test_require_raises_a_failure_record() -> None:
    with this_process() as here:
        key = call(here).key
        here.session.store.publish_failure(
            fmt.Failure(key, "double", "compile-error", "It failed.", time.time(), 3600.0)
        )
        here.session.settings = replace(here.session.settings, require=True)
        says_what_to_do(raised(here), "compile-error")


@pytest.mark.reason("not-in-time")
def test_require_waits_in_mode_eager_and_raises_at_the_deadline() -> None:
    with deaf_daemon(PRECOMPILED_REQUIRE="1", PRECOMPILED_WAIT_S="0.01") as here:
        torch._dynamo.reset()
        compiled = torch.compile(double, backend="precompiled")
        for _ in range(2):  # a server that catches the first exception must not run eager at the next call
            with pytest.raises(NotServed, match=r"within 0\.01 s") as failed:
                compiled(X)
            says_what_to_do(failed.value, "not-in-time")
        assert not here.in_process and here.session.pending.wait(30), "it is still awaited"
        assert {graph.state for graph in here.reports()} == {"failed"}


@pytest.mark.parametrize("code", ["compile-failed", "swap-thread"])
def test_require_raises_later_failures_of_the_daemon_in_the_first_call(
    daemon: DaemonUnderTest, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    with with_daemon(daemon, monkeypatch, PRECOMPILED_REQUIRE="1") as here:
        if code == "swap-thread":
            monkeypatch.setattr(here.session.connection, "ensure_running", no_descriptors)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # the error must not be preceded by a warning with the same text
            says_what_to_do(raised(here), code)
        assert not here.in_process and only(here).state == "failed"


def test_require_applies_to_later_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that was swapped for some sizes must not run eager at other sizes."""
    with deaf_daemon(PRECOMPILED_REQUIRE="1", PRECOMPILED_WAIT_S="0.01") as here:
        calls = GraphCalls(GraphReport(id="1", name="double [0/0]"))

        def submits_nothing(sizes: list[int]) -> None:
            pass

        dispatch = Dispatch(
            calls,
            StandIn(torch.fx.symbolic_trace(double)),
            [0],
            submits_nothing,
            waits=True,
            without_a_job=lambda sizes: here.session.refuse_sizes(calls),
        )
        dispatch.serve_with(lambda size: size * 2, lambda sizes: sizes == [3])
        assert dispatch.call(3) == 6
        for _ in range(2):
            with pytest.raises(NotServed) as caught:
                dispatch.call(4)
            says_what_to_do(caught.value, "too-many-variants")


def test_require_has_no_effect_if_precompiled_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    with this_process({"PRECOMPILED_REQUIRE": "1", "PRECOMPILED_MODE": "off"}) as here:
        torch.testing.assert_close(here.call(double, X), X * 2)
        assert len(here.in_process) == 1
    with this_process({"PRECOMPILED_REQUIRE": "1", "PRECOMPILED": "0"}) as here:
        torch.testing.assert_close(here.call(double, X), X * 2)
        assert len(here.in_process) == 1


def test_require_stays_in_effect_with_an_invalid_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    # ``patch`` ends before ``this_process``, so the test's session is gone when the original session is restored. A
    # session that stays would write files at the end of the test run.
    with this_process() as here, monkeypatch.context() as patch:
        patch.setattr(PROCESS, "session", None)
        patch.setenv("PRECOMPILED_MODE", "fast")
        torch.testing.assert_close(here.call(double, X), X * 2)
        assert len(here.in_process) == 1
        patch.setenv("PRECOMPILED_REQUIRE", "1")
        says_what_to_do(raised(here), "bad-config")


# ---------------------------------------------------------------- no routing at all


def _never(*_: Any) -> Any:
    raise AssertionError("it is not routed")


@pytest.mark.fault("version-skew")
@pytest.mark.reason("unsupported-torch")
def test_unsupported_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch._TorchCompileInductorWrapper.__call__
    monkeypatch.setattr(torch, "__version__", "1.13.0")
    monkeypatch.setattr(inductor_route, "_patches", Patches())
    with pytest.raises(PrecompiledError, match=r"torch 1\.13\.0 is not supported") as caught:
        inductor_route.install(_never, _never, _never, _never)
    assert caught.value.code == "unsupported-torch" and "Install a torch between" in caught.value.action
    assert torch._TorchCompileInductorWrapper.__call__ is plain


def test_require_raises_if_the_hook_cannot_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this error, the program would silently run plain torch.compile after a bad setting or with an unsupported
    torch.
    """
    plain = torch._TorchCompileInductorWrapper.__call__
    monkeypatch.setattr(inductor_route, "_patches", Patches())
    monkeypatch.setattr(routing, "_undo", [])
    monkeypatch.setenv("PRECOMPILED_REQUIRE", "1")
    monkeypatch.setenv("PRECOMPILED_WAIT_S", "soon")
    with pytest.warns(RuntimeWarning, match="wait_s"), pytest.raises(ConfigError):
        routing.on_torch_imported()
    try:
        torch._dynamo.reset()
        with pytest.raises(NotServed) as failed:
            torch.compile(double)(X)
        says_what_to_do(failed.value, "bad-config")
    finally:
        routing.unroute()
    assert torch._TorchCompileInductorWrapper.__call__ is plain
