"""The bytes of a job: a program, which is JSON, followed by the data of its frozen weights (weights.py).

JSON contains no NUL byte, so the first NUL ends the program. Needs no torch.
"""

from __future__ import annotations

_END = b"\0"


def joined(program: bytes, data: bytes) -> bytes:
    return _END.join((program, data)) if data else program


def split(job: bytes) -> tuple[bytes, bytes]:
    """The program, and the data."""
    program, _, data = job.partition(_END)
    return program, data
