"""Reads the stacks that a hanging worker has written to its output.

On SIGQUIT, faulthandler writes the stack of each thread of the worker, newest thread first (worker.py)::

    Thread 0x00007f0a (most recent call first):
      File "service/worker.py", line 180 in _finish
      ...

    Current thread 0x00007f0b (most recent call first):
      ...
"""

from __future__ import annotations

STACK_BYTES = 1500  # bytes of one stack that a message shows
_HEADER = b" (most recent call first):\n"
_SIGNALLED = b"Current thread "  # the thread that got the signal
_BUILD = b"in _finish\n"  # a thread that waits for C++ compilers


def read_stacks(output: bytes) -> list[str]:
    """The stacks that show where a worker hangs: of the main thread, of the thread that got the signal, and of threads
    that wait for C++ compilers. Empty if the worker has not written its stacks.
    """
    stacks = [part for part in output.split(b"\n\n") if _HEADER in part]
    if not any(_SIGNALLED in stack for stack in stacks):
        return []
    *others, main = stacks
    shown = [main, *(stack for stack in others if _SIGNALLED in stack or _BUILD in stack)]
    return [stack.strip()[:STACK_BYTES].decode(errors="replace") for stack in shown]
