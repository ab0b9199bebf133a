"""Tests that precompiled raises the garbage collector's thresholds only while Dynamo traces.

At all other times the program's own thresholds apply.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.callback import CallbackTrigger, callback_handler

from precompiled import routing
from precompiled.torch_internals.client import garbage_collection

OWN = (700, 11, 12)


@pytest.fixture(autouse=True)
def thresholds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PRECOMPILED", "0")  # otherwise a trace would start a daemon for the user's store
    before = gc.get_threshold()
    gc.set_threshold(*OWN)
    routing.route()
    yield
    routing.unroute()
    torch._dynamo.reset()
    gc.set_threshold(*before)


def seen_by(trace: Callable[[], Any] = lambda: None) -> list[tuple[int, ...]]:
    """Trace a function whose backend calls ``trace``. Returns the garbage collector's thresholds in the backend."""
    seen = []

    def backend(module: torch.fx.GraphModule, _inputs: list[Any]) -> Callable[..., Any]:
        seen.append(gc.get_threshold())
        trace()
        return module.forward

    torch.compile(lambda: None)  # this call installs the wrapper that raises the thresholds
    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    return seen


def test_thresholds_are_raised_during_a_trace_and_restored() -> None:
    assert seen_by() == [garbage_collection.SELDOM]
    assert gc.get_threshold() == OWN
    torch._dynamo.reset()  # removes the registered callbacks, too
    assert seen_by() == [garbage_collection.SELDOM]
    assert gc.get_threshold() == OWN


def test_garbage_of_a_trace_is_collected_at_its_end() -> None:
    """If garbage remained, an allocation in the program's first call would start a full collection of all imported
    objects.
    """

    class Cycle:
        def __init__(self) -> None:
            self.me = self

    left: list[weakref.ref[Cycle]] = []
    generations: list[int] = []

    def look(phase: str, about: dict[str, int]) -> None:
        if phase == "start" and gc.get_threshold() == garbage_collection.SELDOM:
            generations.append(about["generation"])

    gc.callbacks.append(look)
    try:
        seen_by(lambda: left.append(weakref.ref(Cycle())))
    finally:
        gc.callbacks.remove(look)
    assert left[0]() is None
    assert generations == [1]


def test_thresholds_are_raised_during_a_package_lookup() -> None:
    with garbage_collection.seldom():
        assert gc.get_threshold() == garbage_collection.SELDOM
        with garbage_collection.seldom():
            pass
        # The end of the inner block must not end the outer block.
        assert gc.get_threshold() == garbage_collection.SELDOM
    assert gc.get_threshold() == OWN


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="SKIPPED: Python 3.14 collects in steps, never everything")
def test_full_collection_is_postponed() -> None:
    """A full collection, in the program's first call, would visit all objects of torch and take a noticeable time.

    Objects that precompiled creates must not cause a full collection. At the end of the block, these objects are in the
    oldest generation.
    """
    gc.collect()
    for _ in range(OWN[2] + 2):
        gc.collect(1)  # now only the number of new objects can prevent a full collection
    with garbage_collection.seldom():
        # CPython starts a full collection if the new objects exceed a quarter of the oldest generation.
        kept = [[number] for number in range(len(gc.get_objects()))]
    generations: list[int] = []

    def look(phase: str, about: dict[str, int]) -> None:
        if phase == "start":
            generations.append(about["generation"])

    gc.callbacks.append(look)
    more = [[number] for number in range(20 * OWN[0])]
    gc.callbacks.remove(look)
    assert len(kept) > len(more)
    assert 1 in generations  # young objects are collected as usual
    assert 2 not in generations


def test_objects_that_the_program_froze_stay_frozen() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with garbage_collection.seldom():
            pass
        assert gc.get_freeze_count() > frozen // 2 > 0, "only objects without references may be gone"
    finally:
        gc.unfreeze()


def test_finalizer_that_traces_during_the_collection_is_harmless() -> None:
    class Traces:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            with garbage_collection.seldom():
                pass

    with garbage_collection.seldom():
        Traces()
    assert gc.get_threshold() == OWN


def test_thresholds_are_restored_if_a_trace_raises() -> None:
    def refuse() -> None:
        raise RuntimeError("no")

    with pytest.raises(Exception, match="no"):
        seen_by(refuse)
    assert gc.get_threshold() == OWN


@pytest.mark.fault("program")
def test_signal_handler_that_raises_at_the_end_of_a_trace_changes_no_threshold() -> None:
    """The signal comes during the collection at the end of the trace. Python calls the handler after the collection, or
    in a callback of the collector (hypothesis has one), where the exception is lost.
    """

    class Expired(Exception):
        pass

    class Signals:
        __del__ = functools.partial(ctypes.CDLL(None)["raise"], signal.SIGUSR1)

        def __init__(self) -> None:
            self.me = self

    def expire(number: int, frame: object) -> None:
        raise Expired

    before = signal.signal(signal.SIGUSR1, expire)
    others = gc.callbacks.copy()
    gc.callbacks.clear()
    torch.compile(lambda: None)  # this call registers the callbacks of traces
    try:
        with pytest.raises(Expired), callback_handler.install_callbacks(CallbackTrigger.DYNAMO, "0/0"):
            Signals()
    finally:
        signal.signal(signal.SIGUSR1, before)
        gc.callbacks.extend(others)
    assert gc.get_threshold() == OWN
    torch.compiler.reset()  # fails if Dynamo still counts the trace


def test_thresholds_set_during_a_trace_are_kept() -> None:
    seen_by(lambda: gc.set_threshold(1, 2, 3))
    assert gc.get_threshold() == (1, 2, 3)


@pytest.mark.parametrize("own", [(0, 10, 10), (1_000_000, 10, 10)])
def test_higher_thresholds_of_the_program_are_kept(own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)
    assert seen_by() == [own]
    assert gc.get_threshold() == own


def test_compile_in_process_uses_the_programs_thresholds() -> None:
    seen = []

    def compile_in_process() -> None:
        with garbage_collection.as_usual():
            seen.append(gc.get_threshold())

    assert seen_by(compile_in_process) == [garbage_collection.SELDOM]
    assert seen == [OWN]
    assert gc.get_threshold() == OWN
