"""The bytes of a job: a program, which is JSON, and behind it the data that goes with it (weights.py).

No JSON has a NUL in it, so the first one ends the program. No torch here.
"""

from __future__ import annotations

_END = b"\0"


def joined(program: bytes, data: bytes) -> bytes:
    return _END.join((program, data)) if data else program


def split(job: bytes) -> tuple[bytes, bytes]:
    """The program, and the data."""
    program, _, data = job.partition(_END)
    return program, data
