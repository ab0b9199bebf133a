"""Typed errors: what is wrong, and what to do next.

Every error has a stable ``code`` (for programs and tests), a ``message`` (what is wrong) and an ``action``
(what the user can do). Except NotServed (`require`), client processes never see these raised out of a compiled call:
``backend.py`` catches them, falls back, and counts the ``code`` as the reason.
"""

from __future__ import annotations

# What torch raised in a worker: the one failure of which a compile in process shows whose fault it was.
COMPILE_ERROR = "compile-error"
# A worker cannot use its GPU any more, whatever graph it had.
DEVICE_LOST = "device-lost"
# A worker finds no room on its GPU now, whatever graph it has.
GPU_UNAVAILABLE = "gpu-unavailable"
# This host builds no kernels, whatever graph a worker has: no compiler, no headers, no assembler.
NO_COMPILER = "no-compiler"
NO_COMPILER_ACTION = "Install g++ and Python's headers, or set CXX; `precompiled doctor` checks them"
# A worker's GPU is made up, and the compile asked it for what only a real one has.
MADE_UP_DEVICE = "made-up-device"
# What a worker says of a graph that it could not do because of where it is, not of what the graph is.
OF_THE_PLACE = frozenset({"environment-differs", DEVICE_LOST, GPU_UNAVAILABLE, MADE_UP_DEVICE, NO_COMPILER})
# What a worker, or a process that keeps its run, cannot leave in the store.
STORE_UNWRITABLE = "store-unwritable"


class PrecompiledError(Exception):
    """Base of everything this project raises on purpose. ``code``: the class's own, or given where it has none."""

    code: str

    def __init__(self, message: str, action: str = "", *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.action = action
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.message}. {self.action}" if self.action else self.message


def code_of(error: BaseException, otherwise: str) -> str:
    """The code that an error counts as; ``otherwise`` where it is none of ours."""
    return error.code if isinstance(error, PrecompiledError) else otherwise


class ConfigError(PrecompiledError):
    """A setting has a value that cannot be used."""

    code = "bad-config"


class WireError(PrecompiledError):
    """A frame is not a message of this protocol version."""

    code = "bad-message"


class DaemonError(PrecompiledError):
    """The daemon cannot be reached, or refused the request; ``code`` says which."""

    code = "no-daemon"


class Bypass(PrecompiledError):
    """This graph is not sent to the daemon; ``code`` is the stable reason."""


class Refused(PrecompiledError):
    """The daemon will not compile this graph, or a worker could not: this process does. It is counted already."""


class StoreError(PrecompiledError):
    """The store cannot be read or written."""


class UntrustedStore(StoreError):
    """A directory or file of the store has an owner or a mode that lets somebody else put code into it."""

    code = "store-untrusted"


class CorruptArtifact(StoreError):
    """An artifact does not match its manifest (truncated, altered, or of another format version)."""

    code = "artifact-corrupt"


class CompileFailed(PrecompiledError):
    """A worker could not turn a graph into an artifact."""


class PackageError(PrecompiledError):
    """A package file cannot be made, or is not for this function, source or machine; ``code`` says which."""


class NotServed(PrecompiledError):
    """With ``PRECOMPILED_REQUIRE=1``, instead of a compile in process or an eager run; ``code`` is its reason.

    Raised by the call that compiles a graph (Dynamo wraps it: ``torch._dynamo.exc.BackendCompilerFailed``, with this as
    its ``inner_exception``) or, for further sizes of it, by each call with these.
    """

    def __init__(self, graph: str, code: str, message: str) -> None:
        from precompiled.core.reasons import REASONS  # only here: processes without errors do without the table

        advice = REASONS[code].plain_advice.rstrip(".") if code in REASONS else ""
        if advice in message:  # what it stands for has said so
            advice = ""
        super().__init__(
            f"the graph {graph} is not served ({code}): {message.rstrip('.')}",
            (f"What you can do: {advice}. " if advice else "")
            + f"`precompiled explain {code}` (docs/reference/reasons.md) has more. "
            "Without PRECOMPILED_REQUIRE=1 the program would go on, as plain torch.compile or eager",
            code=code,
        )
        self.graph = graph
