"""Tests of awaited graphs: forks, resubmits, and threads that wait for the same graph."""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import support_double
import torch
from support_daemon import wait_until
from support_double import X, call, double, no_descriptors, only
from support_session import deaf_daemon, this_process

from precompiled import wire
from precompiled.client.awaited import Awaited
from precompiled.store import artifact_format as fmt
from precompiled.store import run_records


def forked(look: Callable[[], dict[str, Any]], file: Path) -> dict[str, Any]:
    """Return the result of ``look`` in a forked child. A real fork is needed: if the fork handlers ran in this process,
    its threads would use the child's state.
    """
    child = os.fork()
    if child == 0:
        try:
            warnings.simplefilter("ignore")
            file.write_text(json.dumps(look()))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    found: dict[str, Any] = json.loads(file.read_text())
    return found


@pytest.mark.fault("forks")
@pytest.mark.reason("submit-failed")
def test_forked_child_that_cannot_submit_compiles_in_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with deaf_daemon() as here:
        torch._dynamo.reset()
        compiled = torch.compile(double, backend="precompiled")
        compiled(X)
        assert only(here).state == "pending"

        def in_the_child() -> dict[str, Any]:
            here.session.connection.submit = no_descriptors  # type: ignore[method-assign, assignment]
            right = bool(compiled(X).equal(X * 2))
            return {
                "right": right,
                "waited": here.session.pending.wait(30),
                **vars(only(here)),
                "counted": here.counted("fallbacks"),
            }

        found = forked(in_the_child, tmp_path / "child.json")
        assert found["right"] and found["waited"]
        assert (found["state"], found["reason"]) == ("failed", "submit-failed")
        assert "Too many open files" in found["message"] and found["counted"] == {"submit-failed": 1}


@pytest.mark.fault("forks")
def test_forked_child_submits_with_its_own_id(tmp_path: Path) -> None:
    """The daemon replies to one client per id. With its parent's id, a child would take the parent's replies."""
    with deaf_daemon() as here:
        torch._dynamo.reset()
        compiled = torch.compile(double, backend="precompiled")
        compiled(X)
        (parents,) = here.session.pending._awaited

        def in_the_child() -> dict[str, Any]:
            compiled(X)
            return {"awaited": list(here.session.pending._awaited), "submitted": list(here.session.connection._submits)}

        found = forked(in_the_child, tmp_path / "child.json")
        (own,) = found["awaited"]
        assert own != parents and found["submitted"] == [own]
        assert list(here.session.pending._awaited) == [parents]


def test_only_waits_of_the_program_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook's thread waits for the pending graphs, too, but does not block the program."""
    with deaf_daemon() as here:
        call(here)
        waits: list[object] = []
        monkeypatch.setattr(here.session.outcomes, "note_wait", waits.append)
        assert not here.session.wait(0.0, blocks_program=False) and not waits
        assert not here.session.wait(0.0) and len(waits) == 1


def test_failed_start_of_the_swap_thread_affects_one_graph_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with deaf_daemon() as here:
        start = threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            if thread.name == "precompiled-swap":
                raise RuntimeError("can't start new thread")
            start(thread)

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            graph = call(here)
            assert (graph.state, graph.source, graph.reason) == ("bypassed", "inline", "internal-error")
            assert here.session.pending.wait(30), "nothing is awaited"
        assert call(here).state == "pending"
        thread = here.session.pending._thread
        assert thread is not None and thread.is_alive()


@pytest.mark.reason("artifact-evicted")
def test_artifact_that_is_gone_at_its_lookup_is_resubmitted_a_few_times() -> None:
    """An artifact may be gone because the store evicted it at once, or was cleared."""
    with deaf_daemon() as here:
        call(here)
        known = set()
        while only(here).state == "pending":
            with suppress(ValueError):  # no graph is awaited while the client resubmits it
                (id,) = list(here.session.pending._awaited)
                if id not in known:
                    known.add(id)
                    here.session.pending.on_reply(wire.Accepted(id, "", "published"))
        assert here.session.pending.wait(30)  # the last fallback is counted before ``wait`` returns
        graph = only(here)
        assert (graph.state, graph.reason) == ("bypassed", "artifact-evicted")
        assert len(known) == 3 and here.counted("fallbacks") == {"artifact-evicted": 3}


def test_older_failure_record_does_not_end_a_new_submit() -> None:
    with this_process() as here:
        key = call(here).key
    with deaf_daemon() as here:
        call(here)
        (item,) = here.session.pending._awaited.values()
        before = fmt.Failure(key, "double", "compile-error", "Other sizes.", time.time() - 60.0, 3600.0)
        here.session.store.publish_failure(before)
        here.session.pending._look(item)
        assert only(here).state == "pending"
        here.session.store.publish_failure(replace(before, created=time.time()))
        assert here.session.pending.wait(30)
        assert only(here).state == "bypassed"


def test_graph_is_recorded_while_it_is_pending() -> None:
    """`precompiled explain` names the cause of a miss before the compile has ended."""
    with deaf_daemon() as here:
        root, key = here.session.store.root, call(here).key
        wait_until(lambda: list(run_records.programs(root)) == [key])
        (_, run) = run_records.programs(root)[key]
        program = json.loads(run_records.read_program(root, run, key))
        assert support_double.__file__ in {file for file, *_ in program["about"]["calls"]}
        here.session.store.publish_failure(fmt.Failure(key, "double", "compile-error", "No.", time.time(), 3600.0))
        wait_until(lambda: not run_records.programs(root))
        assert only(here).state == "bypassed"


def test_finished_graph_is_not_resubmitted() -> None:
    """A waiting call may try to resubmit a graph just after the swap thread has finished it. A finished graph must not
    be awaited again.
    """
    with deaf_daemon() as here:
        call(here)
        (item,) = here.session.pending._awaited.values()
        here.session.pending._finish(item)
        here.session.pending._resubmit(item)
        assert here.session.pending.wait(0), "it would be awaited for ever"


@pytest.mark.parametrize("when", ["before it has another id", "before that is submitted", "before the end forgets"])
def test_graph_finished_during_a_resubmit_leaves_no_submit(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    with deaf_daemon() as here:
        call(here)
        awaited, connection = here.session.pending, here.session.connection
        (item,) = awaited._awaited.values()
        submit, forget = item.submit, connection.forget
        assert list(connection._submits) == [item.id]

        def submit_late(item: Awaited) -> None:
            awaited._finish(item)
            submit(item)

        def forget_late(id: str) -> None:
            monkeypatch.setattr(connection, "forget", forget)
            awaited._resubmit(item)
            forget(id)

        if when == "before that is submitted":
            item.submit = submit_late
        elif when == "before the end forgets":
            monkeypatch.setattr(connection, "forget", forget_late)
        if when != "before that is submitted":
            awaited._finish(item)
        awaited._resubmit(item)
        assert not connection._submits and awaited.wait(0)


@pytest.mark.filterwarnings("ignore:a graph is compiled in process:RuntimeWarning")
def test_call_that_must_not_run_eager_waits_for_another_threads_compile() -> None:
    with deaf_daemon() as here:
        call(here)
        (item,) = here.session.pending._awaited.values()
        begun, returned, seen = threading.Event(), threading.Event(), []

        def compiles() -> tuple[Callable[..., Any], str]:
            begun.set()
            returned.wait(0.5)  # give the main thread time to start waiting
            return lambda x: (x * 2,), ""

        def must_not_run_eager() -> None:
            here.session.pending.await_artifact(item)
            seen.append(len(item.dispatch._loaded))
            returned.set()

        item.compile_inline = compiles
        here.session.pending._give_up(item, "artifact-evicted", "It was removed three times.")
        first = threading.Thread(target=item.dispatch.call, args=(X,))
        first.start()
        assert begun.wait(30)
        must_not_run_eager()
        first.join()
        assert seen == [1]
