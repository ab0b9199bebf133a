"""Reads the GPU architecture of a cubin from its ELF header."""

from __future__ import annotations

import struct
from pathlib import Path

_EM_CUDA = 190


def architecture_of(path: Path) -> str:
    """Return the architecture, such as "sm_90" (also for sm_90a), or "no cubin" for another kind of file."""
    head = path.read_bytes()[:64]
    if head[:4] != b"\x7fELF" or struct.unpack_from("<H", head, 18)[0] != _EM_CUDA:
        return "no cubin"
    flags = struct.unpack_from("<I", head, 48)[0]
    # precompiled/made_up_cuda/cubin.cpp has the same rule; a test compares it with cuobjdump. From ABI 8 on, the second
    # byte is the architecture.
    return f"sm_{flags >> 8 & 0xFF if head[8] >= 8 else flags & 0xFF}"
