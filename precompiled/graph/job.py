"""Splits the bytes of a job into a captured graph, which is JSON, and the data of its frozen weights (weights.py).

JSON contains no NUL byte, so the first NUL ends the graph. This file needs no torch.
"""

from __future__ import annotations

_END = b"\0"


def join_parts(program: bytes, data: bytes) -> bytes:
    return _END.join((program, data)) if data else program


def split(job: bytes) -> tuple[bytes, bytes]:
    """Return the captured graph, and the data of its frozen weights."""
    program, _, data = job.partition(_END)
    return program, data
