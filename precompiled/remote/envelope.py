"""Encodes and decodes an object of a remote: an artifact, a package entry, a list or a Triton kernel. Objects never
change.

Grammar::

    remote   = url "/artifacts/" key "/" object*  url "/packages/" function "/" object*
               url "/programs/" program "/" object*  url "/kernels/" key "/" object*
    object   = file "<label>-<by>-<digest>"       label: 16 digits for an artifact's variant, an entry's digest, or
                                                  the format of a list or kernel; by: the id of the key that signed
                                                  it, or "unsigned"
    content  = envelope "\\n" body                 envelope: one line of JSON (Envelope)
    body     = manifest "\\n" file*                of an artifact: store/packed.py
             | entry                              of a package: the file as in the store
             | kernel                             of Triton: the file as in the store
             | list                               of a program: lists.py

Before a host uses a body, it verifies that the envelope is trusted and that the body has the envelope's digest. Names
only serve to find objects. Version history: 1, first version.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field

from precompiled.core.json_text import parse_json
from precompiled.remote.errors import ObjectRejected
from precompiled.store import artifact_format as fmt

FORMAT = 1
ARTIFACT, ENTRY, LIST, KERNEL = "artifact", "entry", "list", "kernel"
FOLDERS = {ARTIFACT: "artifacts", ENTRY: "packages", LIST: "programs", KERNEL: "kernels"}
UNSIGNED = "unsigned"
HEAD_BYTES = 64 << 10  # read first; contains the envelope, and often the whole object
MAX_ENVELOPE_BYTES = 4096
MAX_OBJECT_BYTES = 4 << 30
# Prefix of the signed bytes. Because of the prefix, an object's signature is not valid for other data.
_SIGNED = b"precompiled object\n"

_OBJECT = re.compile(r"([0-9a-f]{16}|[0-9a-f]{64})-([0-9a-f]{16}|unsigned)-([0-9a-f]{64})")


@dataclass(frozen=True)
class Envelope:
    """The description of an object.

    ``name`` is a key, ``<function>/<digest>.entry`` or a program, depending on ``kind``. ``digest`` and ``size`` are
    the digest and the size of the body.
    """

    kind: str
    name: str
    size: int
    digest: str
    by: str = UNSIGNED
    signature: str = ""  # base64
    format: int = FORMAT

    def signed(self) -> bytes:
        """The bytes that are signed."""
        return _SIGNED + fmt.canonical(dataclasses.replace(self, signature=""))


@dataclass(frozen=True)
class Object:
    """The facts that a listing of the remote gives about an object. These facts are not verified.

    ``group`` is a key, a function or a program, depending on ``kind``.
    """

    kind: str
    group: str
    label: str
    by: str
    digest: str
    size: int
    # When the object was written, by the remote's clock. None if the listing has no times.
    written: float | None = field(default=None, compare=False)

    @property
    def path(self) -> str:
        return f"{FOLDERS[self.kind]}/{self.group}/{self.label}-{self.by}-{self.digest}"

    @property
    def name(self) -> str:
        """The name that the object's envelope must contain."""
        return f"{self.group}/{self.label}.entry" if self.kind == ENTRY else self.group


def object_at(path: str, size: int, written: float | None = None) -> Object | None:
    """The object at a path below the remote's URL, or None if the path is not an object's."""
    folder, _, rest = path.partition("/")
    group, _, file = rest.partition("/")
    kind = next((kind for kind, name in FOLDERS.items() if name == folder), None)
    found = _OBJECT.fullmatch(file)
    if kind is None or found is None or not fmt.is_key(group):
        return None
    label, by, digest = found.groups()
    return Object(kind, group, label, by, digest, size, written)


def open_envelope(head: bytes) -> tuple[Envelope, int]:
    """Parse the envelope at the beginning of an object. Returns the envelope and the offset of the body.

    Raises ObjectRejected if the envelope is malformed. The caller must check whether the envelope is trusted.
    """
    line, newline, _ = head[:MAX_ENVELOPE_BYTES].partition(b"\n")
    if not newline:
        raise ObjectRejected("an object has no envelope", code="remote-corrupt")
    try:
        raw = parse_json(line)
        if raw.get("format") != FORMAT:
            raise ValueError(f"format {raw.get('format')}, this is format {FORMAT}")
        envelope = Envelope(**raw)
        types = (str, str, int, str, str, str)
        values = dataclasses.astuple(envelope)
        if not all(type(value) is kind for value, kind in zip(values, types, strict=False)):
            raise ValueError("a field of another type")
        if not 0 <= envelope.size <= MAX_OBJECT_BYTES:
            raise ValueError(f"{envelope.size} bytes")
        if fmt.canonical(envelope) != line:
            raise ValueError("not in canonical form")
    except (ValueError, TypeError, AttributeError) as error:
        raise ObjectRejected(f"an object's envelope cannot be read: {error}", code="remote-corrupt") from error
    return envelope, len(line) + 1
