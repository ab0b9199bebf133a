"""Keeps errors of this project's wrappers out of Dynamo's traces.

trace_patches.py wraps functions of Dynamo. The wrappers inspect objects of the program, and these objects may raise
anything. If a wrapper itself raises, Dynamo gets the result or error of the wrapped function, and the frame's trace is
not kept.

No private names. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

from precompiled.core import files, interruptions
from precompiled.packages.describe.errors import NotPortable
from precompiled.packages.dynamo.trace_log import TraceLog


def dynamos_frames() -> Iterator[types.FrameType]:
    """The frames that led to a wrapper's call, innermost first, without this project's frames."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if not files.is_ours(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


class _Call:
    """One call of the wrapped function of Dynamo."""

    __slots__ = ("called", "error", "result")

    def __init__(self) -> None:
        self.called = False
        self.error: BaseException | None = None
        self.result: Any = None


class _Calls(threading.local):
    def __init__(self) -> None:
        self.open: list[_Call] = []


_calls = _Calls()


def contain_errors(
    original: Callable[..., object], wrap: Callable[..., Callable[..., object]], now: Callable[[], TraceLog | None]
) -> Callable[..., object]:
    """Return ``wrap(original, now)``, but let no error of the wrapper reach Dynamo.

    ``original`` runs once per call.
    """

    def observed(*args: object, **kwargs: object) -> object:
        call = _calls.open[-1]
        call.called = True
        try:
            call.result = original(*args, **kwargs)
        except BaseException as error:
            call.error = error
            raise
        return call.result

    noting = wrap(functools.wraps(original)(observed), now)

    def replacement(*args: object, **kwargs: object) -> object:
        log = now()
        if log is None:
            return original(*args, **kwargs)
        call = _Call()
        _calls.open.append(call)
        try:
            return noting(*args, **kwargs)
        except BaseException as error:
            interruptions.pass_on(error)
            if error is call.error:  # Dynamo's own error: a graph break, or an AttributeError of the program
                raise
            log.problem = NotPortable(f"{type(error).__name__} at a note of ours", code="package-internal-error")
            if not call.called:
                return original(*args, **kwargs)
            if call.error is not None:
                raise call.error from None
            return call.result
        finally:
            _calls.open.pop()
            call.error = call.result = None  # else an error's traceback keeps the program's objects alive

    return replacement
