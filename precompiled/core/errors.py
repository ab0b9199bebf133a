"""The exceptions of this project.

Every error has a stable ``code`` (for programs and tests), a ``message`` (what is wrong) and an ``action`` (what the
user can do). Calls of compiled functions raise NotServed if ``require`` is set. They raise none of the other errors,
because ``backend.py`` catches these, falls back, and counts the ``code`` as the reason.
"""

from __future__ import annotations

from contextlib import suppress

# Torch raised an error in a worker. A compile in process shows whether the graph or the worker is the cause.
COMPILE_ERROR = "compile-error"
# A worker can no longer use its GPU. The graph did not cause this failure.
DEVICE_LOST = "device-lost"
# A worker's GPU has too little free memory. The graph did not cause this failure.
GPU_UNAVAILABLE = "gpu-unavailable"
# This host cannot build kernels, because it lacks a compiler, headers or an assembler. The graph did not cause this
# failure.
NO_COMPILER = "no-compiler"
NO_COMPILER_ACTION = "Install g++ and Python's headers, or set CXX; `precompiled doctor` checks them"
# A worker only simulates the GPU, and the compile needed a real GPU.
MADE_UP_DEVICE = "made-up-device"
# Codes of failures that the worker's host or device caused.
OF_THE_PLACE = frozenset({"environment-differs", DEVICE_LOST, GPU_UNAVAILABLE, MADE_UP_DEVICE, NO_COMPILER})
# A process has measured that compiled calls of a graph take longer than eager calls.
SLOWER_THAN_EAGER = "slower-than-eager"
# Several processes crashed in their first calls of an artifact.
CRASHES_PROCESSES = "crashes-processes"
# A worker, or a process that records its run, cannot write to the store.
STORE_UNWRITABLE = "store-unwritable"
# A worker cannot compile a Triton kernel ahead of the program.
KERNEL_AHEAD = "kernel-ahead"


class PrecompiledError(Exception):
    """Base class of all errors that precompiled raises on purpose. Each error
    has a ``code``.
    """

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
    """Return the ``code`` of a PrecompiledError, or ``otherwise`` for any other error."""
    return error.code if isinstance(error, PrecompiledError) else otherwise


class ConfigError(PrecompiledError):
    """A setting has an invalid value."""

    code = "bad-config"


class WireError(PrecompiledError):
    """Received bytes are not a message of this protocol version."""

    code = "bad-message"


class DaemonError(PrecompiledError):
    """The daemon cannot be reached, or refused the request. ``code`` has the reason."""

    code = "no-daemon"


class Bypass(PrecompiledError):
    """The client does not send this graph to the daemon. ``code`` has the reason."""


class Refused(PrecompiledError):
    """The daemon refused this graph, or a worker failed, so this process compiles the graph. The reason has been
    counted.
    """


class StoreError(PrecompiledError):
    """The store cannot be read or written."""


class UntrustedStore(StoreError):
    """A directory or file of the store has an owner or mode that lets another user put code into it."""

    code = "store-untrusted"


class CorruptArtifact(StoreError):
    """An artifact does not match its manifest (truncated, altered, or of a different format version)."""

    code = "artifact-corrupt"


class CompileFailed(PrecompiledError):
    """A worker could not turn a graph into an artifact."""


class PackageError(PrecompiledError):
    """A package file cannot be made, or does not fit this function, source or
    host. ``code`` has the reason.
    """


class NotServed(PrecompiledError):
    """With ``PRECOMPILED_REQUIRE=1``, calls raise ``NotServed`` instead of
    compiling in process or running eager. ``code`` has the reason.

    ``graph`` is the graph's name in ``report()``. The next call tries
    again.
    """

    def __init__(self, graph: str, code: str, message: str) -> None:
        # Imported late, because processes without errors do not need the table.
        from precompiled.core.reasons import read_reasons

        advice = ""
        with suppress(OSError, KeyError):  # no free descriptor; a code of another version
            advice = read_reasons()[code].plain_advice.rstrip(".")
        if advice in message:  # the original error has given this advice already
            advice = ""
        super().__init__(
            # Only the first line, because the rest may be a worker's traceback. `precompiled cache show` prints that.
            f"the graph {graph} is not served ({code}): {message.partition(chr(10))[0].rstrip('.')}",
            (f"What you can do: {advice}. " if advice else "") + f"`precompiled explain {code}` has more. "
            "Without PRECOMPILED_REQUIRE=1, the program would run with plain torch.compile or eager",
            code=code,
        )
        self.graph, self._arguments = graph, (graph, code, message)

    def __reduce__(self) -> tuple[object, ...]:
        return NotServed, self._arguments  # by default, the only argument would be the finished message


# Tracebacks and `help` then show the names under which programs import these classes.
for _public in (PrecompiledError, ConfigError, PackageError, NotServed):
    _public.__module__ = "precompiled"
