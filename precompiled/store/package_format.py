"""Defines the format of one entry of a package: one file, written once, named by the digest of its content.

Grammar::

    store    = root "/packages/" function*     beside "artifacts/"
    function = directory "<function>"          64 hexadecimal digits: function_key()
    refused  = file "refused"                  disables the function's package: function and reason, in JSON
    entry    = file "<digest>.entry"           SHA-256 of the file's content: checked before anything is decoded
    content  = header "\\n" about "\\n" body   header: one line of JSON (Header), read at each lookup; about: one
                                               line of JSON (About), for people; body: a pickle
                                               (packages/dynamo/entry_codec.py)

An entry is the result of Dynamo for one frame under one set of guards. A function with several sets of guards has
several files. A file never changes, so writers cannot lose each other's entries, and equal entries have one name.

Version history:

    1   first version
    2   adds ``about`` and Header.meaning
    3   adds Header.first and Header.program
    4   guards on types include the arguments of a decorator; adds Seen.wholes
    5   adds facts about sets, and all defaults of functions
    6   adds Header.sources
    7   graphs' keys changed: guards name each integer input, graphs contain assertions
    8   the pickle's classes are in other modules
    9   adds Header.sources_code and, in the body, ``later``
    10  adds, in the body, ``sizes_met``: sizes and numbers that the trace found (packages/dynamo/size_history.py)
    11  adds tensors that a graph holds, and optimizers
    12  adds functions that Dynamo called, replaced functions of torch, and closures that share a variable
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

from precompiled.core.errors import CorruptArtifact
from precompiled.core.json_text import parse_json
from precompiled.store.artifact_format import canonical, digest

FORMAT = 12
SUFFIX = ".entry"
MAX_ENTRY_BYTES = 256 << 20
MAX_HEADER_BYTES = 1 << 20  # bytes of the first line; a longer header could not be read without reading the whole entry
# The maximum number of entries of one function. The limit is high, because all models share some functions, such as the
# decorators of libraries.
MAX_ENTRIES = 256
# The maximum number of entries that differ only in ``sources``. There are such entries if several programs use a
# library's function.
MAX_PROGRAMS = 32

# Dynamo wraps each function of torch in a function of this module.
WRAPPER = "torch._dynamo.external_utils"

_NAME = re.compile(r"[0-9a-f]{64}\.entry")


@dataclass(frozen=True)
class Header:
    """Facts about an entry, readable without running the entry's code. The header has no times or process ids, so that
    equal entries have equal bytes.
    """

    function: str  # the key of the function, which names the directory
    module: str
    qualname: str
    code: str  # digest of the function's code
    one_graph: bool  # fullgraph=True
    kind: str  # "compiled" or "skipped"
    # Facts that must be equal in the process that recorded the entry and in a process that uses it. Maps a name to a
    # text or digest. Messages show the name.
    requires: dict[str, str] = field(default_factory=dict)
    artifacts: list[str] = field(default_factory=list)  # keys of the graphs' artifacts
    # Fingerprints of guarded locals, for comparison without decoding the body (guard_facts).
    locals: dict[str, str] = field(default_factory=dict)
    guards: int = 0
    # Digest of the entry's guards and effects, without line numbers: an edit that only moves lines does not change it.
    meaning: str = ""
    program: str = ""  # digest of the bytecode, of the graphs' keys, and of the values that Dynamo put into its globals
    # Digest of the source files of the recording process (packages/source_files.py). "" means that the entry is valid
    # in any program.
    sources: str = ""
    # Digest of the parts of the recording process's source files that can affect a trace (packages/program_text.py). ""
    # means that it was not computed.
    sources_code: str = ""
    # Whether the entry was traced before a second call could show Dynamo which sizes change (packages/audit.py).
    first: bool = False
    format: int = FORMAT


@dataclass(frozen=True)
class GuardText:
    """One guard, for display. ``fact`` describes the guarded value. ``place`` is the user's line of code."""

    source: str
    kind: str
    parameters: str
    fact: Any
    place: str


@dataclass(frozen=True)
class About:
    """The facts that an entry's guards check, for display and comparison without running the entry's code."""

    guards: list[GuardText] = field(default_factory=list)
    inlined: list[list[str]] = field(default_factory=list)  # [module and name, digest of its code]
    sizes: dict[str, Any] = field(default_factory=dict)  # maps the source of a tensor to its sizes; None means any size
    state: str = ""  # Dynamo's global state
    seen: list[list[Any]] = field(default_factory=list)  # facts without a guard (packages/dynamo/unguarded.py)
    reason: str = ""  # if the frame was skipped: why Dynamo skipped it

    def without_places(self) -> About:
        """A copy without the user's lines of code, for a file that goes to other hosts."""
        return dataclasses.replace(self, guards=[dataclasses.replace(guard, place="") for guard in self.guards])

    def to_bytes(self) -> bytes:
        # Values that have no JSON form are written as their repr, unlike in canonical(). The text is only compared.
        return json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"), default=repr).encode()

    @staticmethod
    def parse(data: bytes) -> About:
        """The inverse of ``to_bytes``. Raises CorruptArtifact."""
        try:
            raw = parse_json(data)
            return About(**{**raw, "guards": [GuardText(**guard) for guard in raw["guards"]]})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptArtifact(
                f"the description of a package entry cannot be read: {error}", code="package-corrupt"
            ) from error


def files_of(header: Header, about: About) -> set[str]:
    """The files that may define the entry's function, if this is a function of the main program. These are the files of
    guards that lie in a function of the same name.

    Empty for a function of another module, of an unknown file or of a notebook. The name of a notebook cell's file
    contains the cell's text, so each edit would look like a new program.
    """
    own = f", in {header.qualname.rpartition('.')[2]}"
    found = {guard.place.removesuffix(own).rpartition(":")[0] for guard in about.guards if guard.place.endswith(own)}
    has_files = header.module == "__main__" and not any(file[:1] == "<" or "/ipykernel_" in file for file in found)
    return found if has_files else set()


def are_of_other_files(one: set[str], other: set[str]) -> bool:
    """Whether two results of ``files_of`` belong to different main programs."""
    return bool(one) and bool(other) and not one & other


def function_key(module: str, qualname: str, code: str, *, one_graph: bool) -> str:
    """The name of a function's directory. ``code``: the digest of the function's code."""
    return hashlib.sha256(json.dumps([FORMAT, module, qualname, code, one_graph]).encode()).hexdigest()


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def seal(header: Header, about: bytes, body: bytes) -> tuple[str, bytes]:
    """The name and the content of an entry's file."""
    content = b"\n".join((canonical(header), about, body))
    return digest(content) + SUFFIX, content


def open_entry(name: str, content: bytes, function: str) -> tuple[Header, bytes, bytes]:
    """The header, the description (About) and the body in the content of an entry's file. Raises CorruptArtifact unless
    the file's name is the content's digest.
    """
    if not is_name(name) or digest(content) != name.removesuffix(SUFFIX):
        raise CorruptArtifact(f"the package entry {name[:16]} does not match its digest", code="package-corrupt")
    line, _, rest = content.partition(b"\n")
    about, newline, body = rest.partition(b"\n")
    header = parse_header(line)
    if not newline or header.function != function:
        raise CorruptArtifact(f"a package entry of another function, {header.qualname}", code="package-corrupt")
    return header, about, body


def parse_header(line: bytes) -> Header:
    """The header in an entry's first line. Raises CorruptArtifact."""
    try:
        raw = parse_json(line)
        if raw.get("format") != FORMAT:
            raise CorruptArtifact(
                f"a package of format {raw.get('format')}, this is format {FORMAT}", code="package-format"
            )
        return Header(**raw)
    except (ValueError, TypeError, AttributeError) as error:
        raise CorruptArtifact(f"not a package entry: {error}", code="package-corrupt") from error


def seal_refusal(header: Header, reason: str) -> bytes:
    """The content of the file that disables a function's package."""
    return json.dumps({"function": f"{header.module}.{header.qualname}", "reason": reason}).encode()


def open_refusal(content: bytes) -> dict[str, str]:
    """Parse the content of the file that disables a function's package. If it is unreadable, the package stays
    disabled.
    """
    try:
        raw = parse_json(content)
        return {"function": str(raw["function"]), "reason": str(raw["reason"])}
    except (ValueError, TypeError, KeyError):
        return {"function": "", "reason": "an audit took its packages out of use, and left no readable reason"}
