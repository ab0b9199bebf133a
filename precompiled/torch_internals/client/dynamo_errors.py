"""Raises NotServed through Dynamo unchanged, so that programs can catch it by its class.

Dynamo wraps the exceptions of a backend in BackendCompilerFailed, except exceptions of Dynamo's class ShortenTraceback.
From the traceback of such an exception, torch.compile's wrapper removes Dynamo's frames.

Private names: torch._dynamo.exc.ShortenTraceback.{remove_dynamo_frames}, torch._dynamo.config.verbose.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import torch._dynamo.config
from torch._dynamo import exc

from precompiled.core.errors import NotServed


class _Unwrapped(NotServed, exc.ShortenTraceback):
    def __init__(self, error: NotServed) -> None:
        exc.ShortenTraceback.__init__(self, *error.args, first_useful_frame=None)
        self.__dict__.update(vars(error))

    def remove_dynamo_frames(self) -> _Unwrapped:
        return self if torch._dynamo.config.verbose else self.with_traceback(None)


_Unwrapped.__name__ = _Unwrapped.__qualname__ = "NotServed"
_Unwrapped.__module__ = NotServed.__module__


def unwrapped(error: NotServed, cause: Exception | None = None) -> NotServed:
    """Return ``error`` in a form that reaches the program. ``cause`` becomes the ``__context__``, because torch.compile
    resets ``__cause__``.
    """
    raised = _Unwrapped(error)
    raised.__context__ = cause
    return raised
