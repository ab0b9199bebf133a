"""Tests that exceptions of the program's own signal handlers, trace functions and profilers are recognized."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from precompiled.core import interruptions


class Expired(Exception):
    pass


def raises(number: int, frame: FrameType | None) -> None:
    raise Expired


def calls(*given: Any) -> None:
    raises(0, None)


def changes_the_handler(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    raise Expired


class Handler:
    def method(self, number: int, frame: FrameType | None) -> None:
        raise Expired

    def __call__(self, number: int, frame: FrameType | None) -> None:
        raise Expired


def with_a_name(name: str, number: int, frame: FrameType | None) -> None:
    raise Expired


@pytest.fixture
def handler() -> Iterator[Callable[[Any], Any]]:
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda function: signal.signal(signal.SIGUSR1, function)
    signal.signal(signal.SIGUSR1, before)


def handles_as_its_own(action: Callable[[], object]) -> str:
    """Wraps an error in an error of its own and goes on, as parts of precompiled do."""
    try:
        try:
            action()
        except Exception as error:
            raise ValueError("ours") from error
    except Exception as error:
        interruptions.pass_on(error)
    return "went on"


@pytest.mark.fault("program")
@pytest.mark.parametrize(
    "function",
    [
        raises,
        calls,
        changes_the_handler,
        Handler().method,
        Handler(),
        functools.partial(with_a_name, "x"),
        lambda number, frame: [].pop(),
    ],
)
def test_exception_of_a_signal_handler_is_passed_on(handler: Callable[[Any], Any], function: Any) -> None:
    handler(function)
    with pytest.raises((Expired, IndexError)) as caught:
        handles_as_its_own(lambda: signal.raise_signal(signal.SIGUSR1))
    assert caught.value.__context__ is None, "the program must not see precompiled's own error"


@pytest.mark.fault("program")
@pytest.mark.parametrize("install", [sys.settrace, sys.setprofile])
def test_exception_of_a_trace_function_is_passed_on(install: Callable[[Any], None]) -> None:
    def traces(frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code.co_name == "traced":
            raise Expired

    def traced() -> None:
        pass

    before = sys.gettrace(), sys.getprofile()
    install(traces)
    try:
        with pytest.raises(Expired):
            handles_as_its_own(traced)
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])


@pytest.mark.fault("program")
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_exceptions_that_end_a_program_are_passed_on(kind: type[BaseException]) -> None:
    with pytest.raises(kind):
        interruptions.pass_on(kind())


def test_other_errors_are_not_passed_on(handler: Callable[[Any], Any]) -> None:
    def fails() -> None:
        try:
            signal.raise_signal(signal.SIGUSR1)
        except Expired:
            [].pop()  # the context of this error is one that the program has handled

    handler(raises)
    assert handles_as_its_own(fails) == "went on"
    assert handles_as_its_own(lambda: 1 / 0) == "went on"
