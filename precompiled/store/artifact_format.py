"""Defines the format of artifacts and failure records in the store (version 3).

Grammar::

    store       = root "/artifacts/" (artifact | failure)*   root "/tmp/" *   root "/quarantine/" *
    artifact    = directory "<key>.<slot>"    slot: 0 .. MAX_VARIANTS-1, claimed by the rename that publishes it
                    "manifest.json"           Manifest, as JSON; its "digest" covers itself with digest = ""
                    "entry.bin"               AOTAutograd's bundle: the pickled compile result (load_artifact.py)
                    "native/<sha256>.so"      C++ kernels: an extension module with several kernels
                    "program.json.gz"         the compiled program, for people; no load reads it
    failure     = file "<key>.failed"         Failure, as JSON
    key         = 64 lower-case hexadecimal digits

Version history:

    1   first version
    2   adds program.json.gz; failure records keep their program
    3   a file in native/ holds many kernels; adds Manifest.kernels

A reader treats every other version as a miss, so the graphs are recompiled. The format uses json and dataclasses,
because an import of msgspec would delay each hit (13 to 26 ms).
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

from precompiled.core.errors import CorruptArtifact, StoreError
from precompiled.core.json_text import parse_json

FORMAT = 3
MAX_VARIANTS = 16
MANIFEST = "manifest.json"
BUNDLE = "entry.bin"
NATIVE = "native"
PROGRAM = "program.json.gz"
FAILED_SUFFIX = ".failed"
MAX_MANIFEST_BYTES = 4 << 20
# The maximum size of one file of an artifact, in bytes. Files of graphs with large lifted constants stay far below this
# limit.
MAX_FILE_BYTES = 4 << 30
# The maximum size of a captured graph (program) in a failure record, in bytes. There is a limit because a lookup reads
# the whole record.
MAX_FAILURE_PROGRAM_BYTES = 1 << 20
# The maximum size of an unpacked program, in bytes. Without a limit, a few packed bytes could fill the memory. This
# limit is four times the default limit for graphs that are served.
MAX_PROGRAM_BYTES = 1 << 30

# The tiers of artifacts. "untimed": the compile made a choice that depends on measured times, but nothing could be
# measured, so another choice may be faster.
DEFAULT, UNTIMED = "default", "untimed"

_MAX_TIME_S = 1e12
_KEY = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"entry\.bin|program\.json\.gz|native/[0-9a-f]{64}\.so")


def is_key(text: str) -> bool:
    """Whether ``text`` has the form of a key. Call this before a key becomes a file name."""
    return _KEY.fullmatch(text) is not None


def check_key(key: str) -> None:
    """Raise StoreError unless ``key`` has the form of a key. Call this before a key becomes a file name."""
    if not is_key(key):
        raise StoreError(f"{key!r} is not a key", code="bad-key")


def native(digest: str) -> str:
    """The name of a file with native code."""
    return f"{NATIVE}/{digest}.so"


def digest(data: bytes | memoryview) -> str:
    """SHA-256, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class FileRecord:
    """One file of an artifact: its size and SHA-256."""

    bytes: int
    digest: str


@dataclass(frozen=True)
class Manifest:
    """The description of an artifact, in its manifest.json."""

    key: str
    name: str  # the graph's name, which people read
    components: dict[str, str]  # the parts of the key, as text
    environment: dict[str, str]  # interpreter, torch, triton
    device: str  # "cpu" or "cuda"
    guards: str  # an expression over the graph's size inputs, or ""
    files: dict[str, FileRecord]
    compile_s: float
    created: float  # seconds since the epoch
    # Version, uid, pid and host of the worker, and the numbers of C++ kernels that it built and reused. If the device
    # was simulated, so that nothing could be measured, also the device.
    compiled_by: dict[str, str]
    tier: str = DEFAULT
    has_backward: bool = False
    kernels: dict[str, str] = field(default_factory=dict)  # maps a kernel's name to the digest of its file in native/
    format: int = FORMAT
    digest: str = ""

    @property
    def bytes(self) -> int:
        return sum(record.bytes for record in self.files.values())


def variant_label(manifest: Manifest) -> str:
    """Return the label of a variant. Two artifacts of one key have equal labels if their guards, tiers and formats are
    equal.
    """
    return digest(json.dumps([FORMAT, manifest.guards, manifest.tier]).encode())[:16]


@dataclass(frozen=True)
class Failure:
    """The reason why a graph has no artifact. The record is valid until ``created + ttl_s``. After that, the graph is
    compiled again.
    """

    key: str
    name: str
    reason: str  # the stable code of the failure
    message: str  # a sentence, with the worker's error
    created: float  # seconds since the epoch
    ttl_s: float
    compile_s: float = 0.0
    # Clients from before decision 0018 keep the graph eager unless this value is "inline". Later clients ignore the
    # value and compile in process.
    advice: str = "inline"
    program: str = ""  # base64 of a program.json.gz, or "" if the program is too large
    format: int = FORMAT

    def expired(self, now: float) -> bool:
        # If ``created`` is in the future, the clock was set back since then. Such a record must not keep a graph eager
        # for ever.
        return not self.created - 60 <= now < self.created + self.ttl_s


def canonical(record: Any) -> bytes:
    """A record as JSON. Equal records have equal bytes."""
    return json.dumps(dataclasses.asdict(record), sort_keys=True, separators=(",", ":")).encode()


def seal(manifest: Manifest) -> bytes:
    """The bytes of ``manifest.json``, with the digest filled in."""
    bare = dataclasses.replace(manifest, digest="")
    return canonical(dataclasses.replace(bare, digest=digest(canonical(bare))))


def open_manifest(data: bytes, key: str) -> Manifest:
    """Parse and check ``manifest.json``. Raises CorruptArtifact, and no other error, if the manifest is invalid."""
    manifest = _parse(data, Manifest, key)
    files: dict[str, FileRecord] = {}
    try:
        for name, record in manifest.files.items():
            if not _FILE.fullmatch(name):
                raise CorruptArtifact(f"the manifest names the file {name!r}, which no artifact has")
            files[name] = FileRecord(**record)
        for kernel, file in manifest.kernels.items():
            if files[native(file)].digest != file:
                raise CorruptArtifact(f"the kernel {kernel[:12]} is in {native(file)}, which belongs to another file")
    except (TypeError, AttributeError, LookupError) as error:
        raise CorruptArtifact(f"the manifest's tables cannot be read: {error!r}") from error
    manifest = dataclasses.replace(manifest, files=files)
    try:
        sealed = seal(manifest)
    # json parses deeper nesting than it can write: canonical() then raises RecursionError.
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptArtifact(f"the manifest cannot be sealed again: {error}") from error
    if sealed != data:
        raise CorruptArtifact("the manifest does not match its own digest")
    if BUNDLE not in files:
        raise CorruptArtifact(f"the manifest names no {BUNDLE}")
    return manifest


def names_for_others(manifest: Manifest) -> list[str]:
    """The names of the files that another host or user needs.

    The program contains lines of the user's code. So the program is included only if the other host may need it to
    recompile the graph: for further sizes without a new trace (packages/graphs.py), or to tune an untimed artifact.
    """
    again = bool(manifest.guards) or manifest.tier == UNTIMED
    return [name for name in manifest.files if name != PROGRAM or again]


def encode_failure(failure: Failure) -> bytes:
    return canonical(failure)


def open_failure(data: bytes, key: str) -> Failure:
    """Parse a failure record. Raises CorruptArtifact if the record is invalid."""
    failure = _parse(data, Failure, key)
    times = failure.created, failure.ttl_s, failure.compile_s
    # Refuse integers that are too large for a float. Refuse JSON's Infinity, because the record would never expire.
    if not all(isinstance(value, (int, float)) and abs(value) < _MAX_TIME_S for value in times):
        raise CorruptArtifact("the failure record's times are not numbers")
    texts = failure.name, failure.reason, failure.message, failure.advice, failure.program
    if not all(isinstance(text, str) for text in texts):
        raise CorruptArtifact("the failure record's texts are not texts")
    return failure


def pack_program(program: bytes) -> bytes:
    """The content of ``program.json.gz``. Equal programs have equal bytes."""
    import gzip

    return gzip.compress(program, compresslevel=6, mtime=0)


def unpack_program(data: bytes) -> bytes:
    """Unpack a program. Raises CorruptArtifact if ``data`` is not a packed program."""
    import zlib

    size = int.from_bytes(data[-4:], "little")  # gzip's trailer states the size; no more than this is unpacked
    if size > MAX_PROGRAM_BYTES:
        raise CorruptArtifact(f"the program would have {size} bytes, over the limit of {MAX_PROGRAM_BYTES}")
    unpacking = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)  # gzip's format
    try:
        program = unpacking.decompress(data, max(size, 1))
    except zlib.error as error:
        raise CorruptArtifact(f"the program cannot be unpacked: {error}") from error
    if not unpacking.eof or unpacking.unused_data:
        raise CorruptArtifact("the program cannot be unpacked: it is incomplete, or too long")
    return program


def program_for_failure(program: bytes) -> str:
    """The value of ``Failure.program``."""
    packed = pack_program(program)
    return base64.b64encode(packed).decode() if len(packed) <= MAX_FAILURE_PROGRAM_BYTES else ""


def program_of_failure(failure: Failure) -> bytes | None:
    """The program in a failure record, or None if the record has none. Raises CorruptArtifact if the program is
    unreadable.
    """
    if not failure.program:
        return None
    try:
        return unpack_program(base64.b64decode(failure.program, validate=True))
    except (ValueError, TypeError) as error:
        raise CorruptArtifact(f"the failure record's program cannot be read: {error}") from error


def _parse(data: bytes, kind: Any, key: str) -> Any:
    try:
        raw = parse_json(data)
        if not isinstance(raw, dict):
            raise TypeError("not an object")
        version = raw.get("format")
        if not isinstance(version, int):
            raise TypeError("it names no format")
        if version != FORMAT:
            raise CorruptArtifact(f"format {version}, this is format {FORMAT}", code="artifact-format")
        record = kind(**raw)
    except (ValueError, TypeError) as error:
        raise CorruptArtifact(f"not a {kind.__name__}: {error}") from error
    if record.key != key:
        raise CorruptArtifact(f"it is for the key {str(record.key)[:12]}, not for {key[:12]}")
    return record


@dataclass(frozen=True)
class Payload:
    """An artifact that is not published yet: its manifest, and the content of each of its files, by file name.

    ``publish`` overwrites the manifest's ``files`` and ``digest``.
    """

    manifest: Manifest
    files: dict[str, bytes] = field(repr=False)
