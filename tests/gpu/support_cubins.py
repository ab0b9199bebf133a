"""Support: reads the sections of a cubin, which is a 64-bit ELF file."""

from __future__ import annotations

import struct

NOBITS = 8  # SHT_NOBITS: the section occupies no space in the file


def executed(cubin: bytes) -> dict[str, bytes]:
    """Returns the sections by name, without the line table.

    The line table contains the modification time of the source, so it differs between equal kernels.
    """
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
