"""What a cubin consists of, an ELF file of 64 bits."""

from __future__ import annotations

import struct

NOBITS = 8  # SHT_NOBITS: it takes no room in the file


def executed(cubin: bytes) -> dict[str, bytes]:
    """Its sections by name, but the line table: that has the time at which its source was written, as DWARF's have."""
    (headers,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    sections = [struct.unpack_from("<IIQQQQ", cubin, headers + number * size) for number in range(count)]
    start = sections[names][4]
    found = {}
    for name, kind, _flags, _address, offset, length in sections:
        text = cubin[start + name : cubin.index(b"\0", start + name)].decode()
        found[text] = b"" if kind == NOBITS else cubin[offset : offset + length]
    found.pop(".debug_line", None)
    return found
