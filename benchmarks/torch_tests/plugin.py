"""Writes the outcome of each pytest test, and the states of the graphs, to a file (a pytest plugin).

PRECOMPILED_TORCH_TESTS names the file. Its JSON lines are {"begun": id}, {"test": id, "outcome", "why", "at"}, and at
the end {"graphs": {STATE: number}}. "at" is the test's failing statement and the functions that it called. Tests whose
ids are already in the file are skipped, so a new process continues where another one died.

In torch's tests of Inductor, the backend of ``torch.compile`` is a function that calls ``compile_fx``. Such a call
bypasses the hook (reason ``direct-call``), so this plugin sends it to the backend ``precompiled``.

In mode ``eager``, a graph's first call is eager, and its second call waits for the artifact. So each graph that is
called twice is swapped.

Private names: torch._inductor.compile_fx.compile_fx. Checked on 2.13.0.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from precompiled.version import switched_off

VARIABLE = "PRECOMPILED_TORCH_TESTS"
EVERY = f"{VARIABLE}_EVERY"  # N: run only each Nth test
_LAST = 2000  # characters of an error that are kept


def pytest_configure() -> None:
    _to_the_backend()
    if os.environ.get("PRECOMPILED_MODE") == "eager":
        _swap_before_the_second_call()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    done = {line.get("test") or line.get("begun") for line in results(_file())}
    items[:] = [item for item in items[:: int(os.environ.get(EVERY, "1"))] if item.nodeid not in done]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _tell({"begun": item.nodeid})
    yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome: Any = yield
    if call.excinfo is not None:
        outcome.get_result().user_properties.append(("at", _at(call.excinfo.traceback, item.path)))


def _at(traceback: Any, file: Path) -> str:
    """Return the innermost statement from a file in the test's folder, and the functions that it called."""
    found = ""
    for entry in traceback:
        if Path(str(entry.path)).parent == file.parent:
            found = " ".join(str(entry.statement).split())
        else:
            found += f" > {entry.name}"
    return found[-_LAST:]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # Report failures of setup or teardown, too. The call itself reports its outcome in phase "call".
    if report.when == "call" or report.outcome != "passed":
        outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
        result = {"test": report.nodeid, "outcome": outcome, "why": str(report.longrepr or "")[-_LAST:]}
        _tell({**result, **dict(report.user_properties)})


def pytest_sessionfinish() -> None:
    import precompiled

    graphs = Counter(graph.reason or graph.source or graph.state for graph in precompiled.report())
    _tell({"graphs": dict(graphs)})


def results(file: Path) -> list[dict[str, Any]]:
    """Return all lines of the file."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _file() -> Path:
    return Path(os.environ[VARIABLE])


def _tell(line: dict[str, Any]) -> None:
    with _file().open("a") as file:
        file.write(json.dumps(line) + "\n")


def _to_the_backend() -> None:
    if switched_off(os.environ):
        return
    import torch._inductor.compile_fx as inductor
    from torch._dynamo.backends.registry import lookup_backend

    own = inductor.compile_fx
    inside = threading.local()

    def compile_fx(model: Any, inputs: Any, *more: Any, **options: Any) -> Any:
        # To compile in process, the backend calls this function again. Calls with options do not come from these tests.
        if more or options or getattr(inside, "now", False):
            return own(model, inputs, *more, **options)
        inside.now = True
        try:
            return lookup_backend("precompiled")(model, inputs)
        finally:
            inside.now = False

    inductor.compile_fx = compile_fx


def _swap_before_the_second_call() -> None:
    if switched_off(os.environ):
        return
    from precompiled.client.submit import Submitter

    own = Submitter.submit_and_await

    def submit_and_await(self: Submitter, program: Any, dispatch: Any, *more: Any) -> Any:
        awaited = own(self, program, dispatch, *more)
        swapped, calls = dispatch.call, itertools.count(1)

        def call(*args: Any) -> Any:
            if next(calls) == 2:
                self.session.pending.await_artifact(awaited)
            return swapped(*args)

        dispatch.call = call  # Dynamo gets ``dispatch.call`` only after this function returns
        return awaited

    Submitter.submit_and_await = submit_and_await  # type: ignore[assignment, method-assign]
