"""Describes errors that torch raises while Dynamo traces a frame, and reports them if packages are off.

If packages are on, dynamo_frames.py replaces the same methods and reports these errors.

Private names: torch._dynamo.convert_frame.{ConvertFrame._inner_convert, ConvertFrameAssert._export},
torch._dynamo.exc.{Unsupported, UserError}. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import functools
import logging
import threading
import types
from collections.abc import Callable
from typing import Any

from torch._dynamo import convert_frame, exc

from precompiled.core import interruptions
from precompiled.packages.describe.codes import qualname
from precompiled.store.package_format import WRAPPER
from precompiled.torch_internals.client import compiled_functions, inductor_backend
from precompiled.torch_internals.patches import Patches

log = logging.getLogger("precompiled.package")

UNCOMPILED = "the function runs uncompiled"  # after an error that Dynamo suppressed
# A function that is called with a frame's name when the frame's trace begins. It returns another function. If the trace
# raises, that function is called with the problem and the report's state.
Begin = Callable[[str], Callable[[str, str], None]]

_patches = Patches()
_now = threading.local()  # ``inside``: whether this thread traces; ``error``: the error that ends the trace


def install(begin: Begin) -> None:
    """Report errors of traces from now on. Idempotent."""
    if not _patches:
        for converter in (convert_frame.ConvertFrame, convert_frame.ConvertFrameAssert):
            _patches.replace(converter, "__call__", functools.partial(_observed, begin))


def remove() -> None:
    """Restore Dynamo's own methods. Idempotent."""
    _patches.undo()


def described(error: BaseException) -> str:
    """The class of an error, and the first line of its message.

    Dynamo writes an operator's own error at the end of an explanation: ``Dynamo failed to run ...: got KeyError('a')``.
    """
    lines = str(error).strip().splitlines() or [""]
    cause = next((line.rpartition(": got ")[2] for line in lines[:2] if ": got " in line), lines[0])
    return f"{type(error).__name__}: {cause}" if cause else type(error).__name__


def state_of(error: BaseException) -> str:
    """The state of a function whose trace ended with an error: "interrupted" (Ctrl-C, for example) or "raised"."""
    return "raised" if isinstance(error, Exception) else "interrupted"


def ends_trace(error: Exception) -> bool:
    """Whether an error that reaches ConvertFrame is an error of the program or of torch.

    All other errors mean that Dynamo cannot trace the frame. The frame then runs uncompiled.
    """
    return not isinstance(error, (exc.Unsupported, exc.UserError))


def shown_name(code: types.CodeType, local: Any, scope: Any) -> str:
    """A frame's name for reports. For a module of torch's own (nn.Sequential), the name of its class."""
    module = str(scope.get("__name__", ""))
    wrapped = type(local.get("fn"))
    return f"{wrapped.__module__}.{wrapped.__qualname__}" if module == WRAPPER else f"{module}.{qualname(code)}"


def _observed(begin: Begin, original: Callable[..., Any]) -> Callable[..., object]:
    @functools.wraps(original)
    def convert(self: Any, frame: Any, *args: object, **kwargs: object) -> object:
        if getattr(_now, "inside", False):  # nested: ConvertFrame calls ConvertFrameAssert
            try:
                return original(self, frame, *args, **kwargs)
            except Exception as error:
                if ends_trace(error):
                    _now.error = described(error)
                raise
        raised = _contained(_begun, begin, self, frame)
        if raised is None:
            return original(self, frame, *args, **kwargs)
        _now.inside, _now.error = True, ""
        try:
            result = original(self, frame, *args, **kwargs)
        except BaseException as error:
            _contained(raised, described(error), state_of(error))
            raise
        finally:
            _now.inside = False
        if _now.error and result.guarded_code is None:  # torch._dynamo.config.suppress_errors
            _contained(raised, f"{_now.error}; {UNCOMPILED}", "raised")
        return result

    return convert


def _begun(begin: Begin, converter: Any, frame: Any) -> Callable[[str, str], None] | None:
    """None for other backends and for exports, which precompiled does not serve."""
    inner = getattr(converter, "_inner_convert", converter)
    backend = compiled_functions.innermost(converter)
    if getattr(inner, "_export", True) or inductor_backend.options_of_backend(backend) is None:
        return None
    return begin(shown_name(frame.f_code, frame.f_locals, frame.f_globals))


def _contained(step: Callable[..., Any], *arguments: object) -> Any:
    """Run a step. Returns None if the step fails, because a report must not change the program's call."""
    try:
        return step(*arguments)
    except Exception as error:
        interruptions.pass_on(error)
        log.info("an error of a trace is not reported", exc_info=True)
        return None
