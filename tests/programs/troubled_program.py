"""A program that raises, is interrupted, traced or reset while it uses torch.compile.

Usage: troubled_program.py CASE ... Prints a line of JSON for each case. Under precompiled the output must be the same
as under plain torch.compile. A case of ENDS ends the process, with an exit status that must be the same as well. A
case of WAITS needs a graph without an artifact, and the mode "wait".
"""

from __future__ import annotations

import atexit
import cProfile
import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from troubled_operator import act, actions

import precompiled

CASES: dict[str, Callable[[], Any]] = {}
ENDS: dict[str, Callable[[], Any]] = {}
WAITS: dict[str, Callable[[], Any]] = {}
X = torch.arange(6.0).reshape(2, 3)


class Expired(TimeoutError):
    pass


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES[function.__name__] = function
    return function


def ends(function: Callable[[], Any]) -> Callable[[], Any]:
    ENDS[function.__name__] = function
    return function


def waits(function: Callable[[], Any]) -> Callable[[], Any]:
    WAITS[function.__name__] = function
    return function


def graph(number: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """A compiled function whose graph calls ``act``. Each case has a number, so that each case has a graph of its
    own.
    """
    return torch.compile(lambda x: act(x * number).sin() + 1)


def told(function: Callable[[], Any]) -> Any:
    """The result of ``function``, or the exception as the program sees it. If a backend raises, Dynamo names the
    backend's exception.
    """
    try:
        return shown(function())
    except BaseException as error:
        inner = getattr(error, "inner_exception", None)
        return ["raises", type(error).__name__, *([type(inner).__name__] if inner is not None else [str(error)])]


def shown(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return [round(float(item), 4) for item in value.detach().flatten()]
    return [shown(item) for item in value] if isinstance(value, (list, tuple)) else value


def raises(error: BaseException) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


def main_is_in(name: str) -> bool:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return frame is not None and any(item.f_code.co_name == name for item, _line in traceback.walk_stack(frame))


def signals_in_a_wait(number: int, function: Callable[[], Any]) -> Any:
    """Call ``function``, and send a signal while the main thread waits for an artifact."""

    def send() -> None:
        while not over and not main_is_in("stand_still"):
            time.sleep(0.0005)
        if not over:
            os.kill(os.getpid(), number)

    over: list[bool] = []
    thread = threading.Thread(target=send)
    thread.start()
    try:
        return told(function)
    finally:
        over.append(True)
        thread.join()


@case
def exception_in_forward() -> Any:
    function, results = graph(2), []
    for error in (None, ValueError("mine"), None, Expired("late"), None):
        actions().extend([raises(error)] if error else [])
        results.append(told(lambda: function(X)))
    return results


@case
def exception_in_backward() -> Any:
    function, results = graph(3), []
    for error in (None, ValueError("mine"), None):
        x = X.clone().requires_grad_()
        loss = function(x).sum()
        actions().extend([raises(error)] if error else [])
        results += [told(loss.backward), shown(x.grad) if x.grad is not None else None]
    return results


@case
def exception_in_a_hook() -> Any:
    function, x = graph(3), X.clone().requires_grad_()
    handle = x.register_hook(lambda grad: 1 / 0)
    first = told(lambda: function(x).sum().backward())
    handle.remove()
    return [first, told(lambda: function(x).sum().backward()), shown(x.grad)]


@case
def ctrl_c_in_a_graph() -> Any:
    function = graph(4)
    actions().append(lambda: signal.raise_signal(signal.SIGINT))
    return [told(lambda: function(X)), told(lambda: function(X))]


@case
def ctrl_c_in_a_trace() -> Any:
    @torch.compiler.assume_constant_result
    def interrupted() -> int:
        if not seen:
            seen.append(True)
            signal.raise_signal(signal.SIGINT)
        return 3

    seen: list[bool] = []
    function = torch.compile(lambda x: act(x * 5) + interrupted())
    return [told(lambda: function(X)), told(lambda: function(X))]


@waits
def ctrl_c_in_a_wait() -> Any:
    function = graph(6)
    return [signals_in_a_wait(signal.SIGINT, lambda: function(X)), told(lambda: function(X))]


@waits
def alarm_in_a_wait() -> Any:
    def expire(number: int, frame: FrameType | None) -> None:
        raise Expired("late")

    function, before = graph(7), signal.signal(signal.SIGALRM, expire)
    try:
        return [signals_in_a_wait(signal.SIGALRM, lambda: function(X)), told(lambda: function(X))]
    finally:
        signal.signal(signal.SIGALRM, before)


@case
def trace_function() -> Any:
    return observed(sys.settrace, sys.gettrace, 8)


@case
def profile_function() -> Any:
    return observed(sys.setprofile, sys.getprofile, 9)


def observed(install: Callable[[Any], None], installed: Callable[[], Any], number: int) -> Any:
    """Calls a function under a trace function or profiler, which sees the program's own functions."""

    def observe(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename == __file__ and frame.f_code.co_name not in ("observe", "observed"):
            events.append(f"{event} {frame.f_code.co_name}")
        return observe

    events: list[str] = []
    function = graph(number)
    install(observe)
    try:
        results = [shown(function(X)), shown(function(X))]
        return [results, sorted({*events} & {"call act", "return act"}), installed() is observe]
    finally:
        install(None)


@case
def profiler_of_python() -> Any:
    function, profiler = graph(10), cProfile.Profile()
    found = [shown(profiler.runcall(function, X)), shown(profiler.runcall(function, X))]
    return [found, sys.getprofile() is None]


@case
def profiler_of_torch() -> Any:
    function = graph(11)
    with torch.profiler.profile() as profiler:
        found = [shown(function(X)), shown(function(X))]
    return [found, any(event.key == "troubled_operator::act" for event in profiler.key_averages())]


@case
def garbage_collector() -> Any:
    function, before, found = graph(12), gc.get_threshold(), []
    gc.freeze()
    found += [shown(function(X)), gc.get_freeze_count() > 0, gc.isenabled(), gc.get_threshold() == before]
    gc.unfreeze()
    function = graph(13)
    gc.disable()
    found += [shown(function(X)), gc.isenabled(), gc.get_threshold() == before]
    gc.enable()
    return found


@case
def reset_between_calls() -> Any:
    function, found = graph(14), []
    for _ in range(3):
        found.append(told(lambda: function(X)))
        torch.compiler.reset()
    return found


@case
def reset_in_a_graph() -> Any:
    function = graph(15)
    actions().append(torch.compiler.reset)
    return [told(lambda: function(X)), told(lambda: function(X))]


@ends
def leaves_with_pending_graphs() -> Any:
    return [shown(graph(20)(X)), shown(graph(21)(X))]


@ends
def exits_in_a_graph() -> Any:
    actions().append(raises(SystemExit(5)))
    return shown(graph(22)(X))


@ends
def exits_at_once_in_a_graph() -> Any:
    actions().append(lambda: os._exit(6))
    return shown(graph(23)(X))


@ends
def raises_with_pending_graphs() -> Any:
    graph(24)(X)
    raise Expired("the program's own")


@waits
def exit_of_a_handler_in_a_wait() -> Any:
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(8))
    function = graph(25)
    try:
        return signals_in_a_wait(signal.SIGTERM, lambda: function(X))
    finally:
        signal.signal(signal.SIGTERM, before)


@ends
def calls_in_an_exit_handler() -> Any:
    function = graph(26)
    atexit.register(lambda: print(told(lambda: function(X)), flush=True))
    return shown(graph(27)(X))


@ends
def ends_by_a_signal() -> Any:
    actions().append(lambda: os.kill(os.getpid(), signal.SIGTERM))
    return shown(graph(29)(X))


def main() -> None:
    precompiled.enable()
    for name in sys.argv[1:] or CASES:
        actions().clear()
        torch.compiler.reset()  # otherwise Dynamo would make the number of `graph` symbolic
        print(json.dumps([name, {**CASES, **ENDS, **WAITS}[name]()]), flush=True)


if __name__ == "__main__":
    main()
