"""For which architecture a cubin is, by its ELF header."""

from __future__ import annotations

import struct
from pathlib import Path

_EM_CUDA = 190


def architecture_of(path: Path) -> str:
    """"sm_90" (for sm_90a as well), or what is wrong with the file."""
    head = path.read_bytes()[:64]
    if head[:4] != b"\x7fELF" or struct.unpack_from("<H", head, 18)[0] != _EM_CUDA:
        return "no cubin"
    flags = struct.unpack_from("<I", head, 48)[0]
    # As precompiled/made_up_cuda/cubin.cpp, which is held against cuobjdump: another byte from ABI 8 on.
    return f"sm_{flags >> 8 & 0xff if head[8] >= 8 else flags & 0xff}"
