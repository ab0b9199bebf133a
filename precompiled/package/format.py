"""The format of one entry of a package: one file, written once, named by its content.

Grammar::

    store    = root "/packages/" function*     beside "artifacts/"
    function = directory "<function>"          64 hexadecimal digits: function_key()
    entry    = file "<digest>.entry"           SHA-256 of the file's content: what is checked before anything is decoded
    content  = header "\\n" body               header: one line of JSON (Header); body: a pickle
                                               (torch_internals/package_code.py)

An entry is what Dynamo made of one frame under one set of guards; a function with several has several files. Writers
never change a file, so several of them cannot lose each other's entries, and equal entries have one name.

Version history:

    1   first version
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass, field

from precompiled.errors import CorruptArtifact

FORMAT = 1
SUFFIX = ".entry"
MAX_ENTRY_BYTES = 256 << 20
# Entries of one function that are kept; many, since some functions are part of every model (decorators of libraries).
MAX_ENTRIES = 256

_NAME = re.compile(r"[0-9a-f]{64}\.entry")


@dataclass(frozen=True)
class Header:
    """What can be read of an entry without running its code. No times, no process ids: equal entries are one."""

    function: str  # the key of the function: the name of the directory
    module: str
    qualname: str
    code: str  # digest of its code
    one_graph: bool  # fullgraph=True
    kind: str  # "compiled" or "skipped"
    # What must be equal in the process that uses it: name -> text or digest. Their names are what people are shown.
    requires: dict[str, str] = field(default_factory=dict)
    artifacts: list[str] = field(default_factory=list)  # keys of the graphs' artifacts
    # Of the locals that have guards: what a look tells without decoding the body (package_frames.look).
    locals: dict[str, str] = field(default_factory=dict)
    guards: int = 0
    format: int = FORMAT


def function_key(module: str, qualname: str, code: str, *, one_graph: bool) -> str:
    """The name of a function's directory; ``code``: the digest of its code."""
    return hashlib.sha256(json.dumps([FORMAT, module, qualname, code, one_graph]).encode()).hexdigest()


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def seal(header: Header, body: bytes) -> tuple[str, bytes]:
    """The name and the content of an entry's file."""
    content = json.dumps(dataclasses.asdict(header), sort_keys=True, separators=(",", ":")).encode() + b"\n" + body
    return hashlib.sha256(content).hexdigest() + SUFFIX, content


def open_entry(name: str, content: bytes, function: str) -> tuple[Header, bytes]:
    """Header and body of a file's content; raises CorruptArtifact unless it is what its name says."""
    if not is_name(name) or hashlib.sha256(content).hexdigest() != name.removesuffix(SUFFIX):
        raise CorruptArtifact(f"the package entry {name[:16]} does not match its digest", code="package-corrupt")
    line, newline, body = content.partition(b"\n")
    try:
        raw = json.loads(line)
        if raw.get("format") != FORMAT:
            raise CorruptArtifact(f"a package of format {raw.get('format')}, this is format {FORMAT}",
                                  code="package-format")  # fmt: skip
        header = Header(**raw)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptArtifact(f"not a package entry: {error}", code="package-corrupt") from error
    if not newline or header.function != function:
        raise CorruptArtifact(f"a package entry of another function, {header.qualname}", code="package-corrupt")
    return header, body
