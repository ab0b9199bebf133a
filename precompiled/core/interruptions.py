"""Recognizes exceptions that the program itself raises while precompiled's code runs.

Python calls a program's signal handler, trace function or profiler between two instructions of any code. Such a
function may raise. Examples are a time limit with SIGALRM, and torch's handler of SIGCHLD after the death of a
DataLoader's worker. An ``except`` block of this project must not treat the program's exception as an error of
precompiled.
"""

from __future__ import annotations

import inspect
from types import FrameType, TracebackType


def pass_on(error: BaseException) -> None:
    """If ``error`` is an exception of the program, or was raised from one, raise the program's exception.

    KeyboardInterrupt and SystemExit count as the program's own. Every ``except`` block that swallows ``error`` in a
    thread of the program calls this function first.
    """
    seen: BaseException | None = error
    while seen is not None and not _is_interruption(seen):
        seen = seen.__cause__
    if seen is None:
        return
    context = seen.__context__
    try:
        raise seen
    finally:
        seen.__context__ = context  # the program must not see the error that precompiled raised from its exception


def _is_interruption(error: BaseException) -> bool:
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        return True
    here: TracebackType | None = error.__traceback__
    while here is not None:
        if _is_called_by_python(here.tb_frame):
            return True
        here = here.tb_next
    return False


def _is_called_by_python(frame: FrameType) -> bool:
    """Whether Python called the frame's function as a signal handler, trace function or profiler. Such a function has
    the interrupted frame as an argument.
    """
    code, caller = frame.f_code, frame.f_back
    if caller is None:
        return False
    values = frame.f_locals
    arguments = [values.get(name) for name in code.co_varnames[: code.co_argcount]]
    if code.co_flags & inspect.CO_VARARGS:
        rest = values.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        arguments += rest if type(rest) is tuple else ()
    return any(argument is caller for argument in arguments)
