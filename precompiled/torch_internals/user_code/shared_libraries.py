"""Finds the shared libraries of this process that register operators, and computes digests of libraries.

For each registration, torch stores the name of the C++ source file (the macro TORCH_LIBRARY passes ``__FILE__``), but
not the library. So this file searches the libraries for that name. If several libraries contain the name, all of them
count. The digest covers the files of a library and of the libraries that it needs. Libraries that torch itself needs
are left out, because torch's build is in the key.

The loader's state and the files' dynamic sections are read directly (man 3 dl_iterate_phdr, man 5 elf).

No private names. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES

from precompiled.core.errors import Bypass
from precompiled.core.files import earliest_load, is_really_torchs, process_start, save_time

# The functions that a library calls to register operators: the constructor of torch::Library, or of torch's stable ABI.
_REGISTERING = (b"_ZN5torch7LibraryC", b"aoti_torch_library_init_")

_LOAD, _DYNAMIC = 1, 2  # PT_LOAD, PT_DYNAMIC
_NEEDED, _STRINGS, _STRINGS_SIZE, _SONAME = 1, 5, 10, 14  # DT_NEEDED, DT_STRTAB, DT_STRSZ, DT_SONAME


def is_extension(path: str) -> bool:
    """Whether a module with this file is a shared library."""
    return path.endswith(tuple(EXTENSION_SUFFIXES))


def registering(file: str) -> list[str]:
    """The loaded libraries, except torch's own, that register operators and were compiled from this source file."""
    return list(_registering(file, _changes()))


def digest(path: str, *, code: str) -> str:
    """SHA-256 over a library and the libraries that it needs.

    Raises Bypass (``code``) if one of them is not loaded or cannot be read, and Bypass "custom-op-edited" if a file may
    have changed since it was loaded.
    """
    return _digest(os.path.realpath(path), code, _changes())


@cache
def _registering(file: str, changes: int) -> tuple[str, ...]:
    ended = os.fsencode(file) + b"\0"
    callers = (path for path in _loaded(changes) if _read(path).registers and not is_really_torchs(path))
    return tuple(path for path in callers if _holds(path, ended))


def _holds(path: str, text: bytes) -> bool:
    with _content(path) as content:
        return content.find(text) >= 0


@cache
def _digest(path: str, code: str, changes: int) -> str:
    state = hashlib.sha256()
    # The libraries are sorted by name, because the loader's order may differ between processes.
    for found in sorted(_with_needed(path, code, changes), key=lambda found: (os.path.basename(found), found)):
        try:
            state.update(f"{os.path.basename(found)} {content_digest(found)}\n".encode())
        except OSError as error:
            raise Bypass(f"the library {found} cannot be read: {error}", code=code) from error
    return state.hexdigest()


@cache
def content_digest(path: str) -> str:
    """SHA-256 of a file. Cached for the life of the process, because the process keeps running what it has loaded.

    Raises OSError, and Bypass "custom-op-edited" if the file may have changed since it was loaded.
    """
    if save_time(path) > _earliest_load(path):
        raise Bypass(f"{os.path.basename(path)} was saved after this process started", code="custom-op-edited")
    with _content(path) as content:
        return hashlib.sha256(content).hexdigest()


def _earliest_load(path: str) -> float:
    """Return a time before which this process loaded no version of a library, in seconds since the epoch.

    The loader lists libraries in the order of their loading. So a library that follows torch's extension module was
    loaded after that module, and the hook ran before that. Any other library may be as old as the process.
    """
    loaded = _loaded(_changes())
    torchs = os.path.realpath(sys.modules["torch._C"].__file__ or "")
    if path in loaded and torchs in loaded[: loaded.index(path)]:
        return earliest_load("torch._C", torchs)
    return process_start()


def _with_needed(path: str, code: str, changes: int) -> set[str]:
    loaded = _by_name(changes)
    of_torch = _of_torch(changes)
    found: set[str] = set()
    waiting = [path]
    while waiting:
        item = waiting.pop()
        if item in found or item in of_torch:
            continue
        found.add(item)
        try:
            needed = _read(item).needed
        except (OSError, ValueError) as error:
            raise Bypass(f"the library {item} cannot be read: {error}", code=code) from error
        for name in needed:
            if name not in loaded:
                raise Bypass(f"{os.path.basename(item)} needs {name}, which is not loaded", code=code)
            waiting.append(loaded[name])
    return found


@cache
def _of_torch(changes: int) -> frozenset[str]:
    """Torch's own libraries, and the libraries that they need."""
    loaded = _by_name(changes)
    found: set[str] = set()
    waiting = [path for path in _loaded(changes) if is_really_torchs(path)]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += [loaded[name] for name in _read(path).needed if name in loaded]
    return frozenset(found)


@cache
def _by_name(changes: int) -> dict[str, str]:
    """Loaded libraries by the names under which other libraries need them. If two libraries have the same name, the one
    that was loaded first counts.
    """
    found: dict[str, str] = {}
    for path in _loaded(changes):
        for name in (_read(path).name, os.path.basename(path)):
            found.setdefault(name, path)
    return found


# ---------------------------------------------------------------- state of the dynamic loader


class _Object(ctypes.Structure):
    """``struct dl_phdr_info``."""

    _fields_ = [
        ("address", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.c_void_p),
        ("count", ctypes.c_uint16),
        ("adds", ctypes.c_ulonglong),
        ("subs", ctypes.c_ulonglong),
    ]


_CALLBACK = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Object), ctypes.c_size_t, ctypes.c_void_p)


def _changes() -> int:
    """A number that changes whenever a library is loaded or unloaded."""
    return next(_objects(first=True))[1]


@cache
def _loaded(changes: int) -> tuple[str, ...]:
    """The files of all loaded libraries, in the order of their loading."""
    del changes  # only the key of the cache
    named = (os.path.realpath(os.fsdecode(name)) for name, _ in _objects() if name.startswith(b"/"))
    return tuple(path for path in dict.fromkeys(named) if _is_readable(path))


def _objects(*, first: bool = False) -> Iterator[tuple[bytes, int]]:
    found: list[tuple[bytes, int]] = []

    def note(item: ctypes._Pointer[_Object], size: int, data: object) -> int:
        del size, data
        found.append((item.contents.name or b"", item.contents.adds + item.contents.subs))
        return int(first)

    # PyDLL holds the GIL during this call. So no other Python thread can wait for the loader while that thread holds
    # the GIL.
    ctypes.PyDLL(None).dl_iterate_phdr(_CALLBACK(note), None)
    return iter(found)


# ---------------------------------------------------------------- contents of a library's file


@dataclass(frozen=True)
class _Library:
    name: str
    needed: tuple[str, ...]
    registers: bool


def _is_readable(path: str) -> bool:
    """Whether a file can be read. False for deleted files and for the vDSO, which the Linux kernel provides."""
    try:
        _read(path)
    except (OSError, ValueError):
        return False
    return True


@contextmanager
def _content(path: str) -> Iterator[mmap.mmap]:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        yield content


@cache
def _read(path: str) -> _Library:
    """Read a library's dynamic section. Raises OSError, or ValueError if the file is not a 64-bit library."""
    with _content(path) as content:
        try:
            return _dynamic(content)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not a shared library") from error


def _dynamic(content: mmap.mmap) -> _Library:
    if content[:6] != b"\x7fELF\x02\x01":  # 64 bits, little-endian
        raise ValueError("no shared library of 64 bits")
    (headers,) = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    loads: list[tuple[int, int, int]] = []
    entries: list[tuple[int, int]] = []
    for at in range(headers, headers + size * count, size):
        kind, _flags, offset, address, _physical, length = struct.unpack_from("<IIQQQQ", content, at)
        if kind == _LOAD:
            loads.append((address, length, offset))
        elif kind == _DYNAMIC:
            entries += struct.iter_unpack("<qQ", content[offset : offset + length])
    first = dict(reversed(entries))
    start = _offset(first.get(_STRINGS, 0), loads)
    strings = content[start : start + first.get(_STRINGS_SIZE, 0)]
    named = list(_texts(strings, (value for tag, value in entries if tag == _SONAME)))
    needed = tuple(_texts(strings, (value for tag, value in entries if tag == _NEEDED)))
    return _Library(named[0] if named else "", needed, any(name in strings for name in _REGISTERING))


def _offset(address: int, loads: list[tuple[int, int, int]]) -> int:
    """Return the position in the library's file for an address in the loaded library."""
    for start, length, offset in loads:
        if start <= address < start + length:
            return address - start + offset
    raise ValueError("its strings are not in the file")


def _texts(strings: bytes, starts: Iterable[int]) -> Iterator[str]:
    for start in starts:
        yield strings[start : strings.index(b"\0", start)].decode()
