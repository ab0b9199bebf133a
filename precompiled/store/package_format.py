"""The format of one entry of a package: one file, written once, named by its content.

Grammar::

    store    = root "/packages/" function*     beside "artifacts/"
    function = directory "<function>"          64 hexadecimal digits: function_key()
    refused  = file "refused"                  the function's packages are out of use: function and reason, in JSON
    entry    = file "<digest>.entry"           SHA-256 of the file's content: checked before anything is decoded
    content  = header "\\n" about "\\n" body   header: one line of JSON (Header), read at each lookup; about: one
                                               line of JSON (About), for people; body: a pickle
                                               (packages/dynamo/entry_codec.py)

An entry is what Dynamo made of one frame under one set of guards; a function with several sets has several files.
Writers never change a file, so they cannot lose each other's entries, and equal entries have one name.

Version history:

    1   first version
    2   about; meaning
    3   first; program
    4   guards on types say what a decorator was made with; Seen.wholes
    5   facts about sets; all defaults of functions
    6   sources
    7   the keys of graphs changed: guards name each integer input, assertions are in the graph
    8   the pickle's classes are in other modules
    9   sources_code: what matters of the program's texts (decision 0024); ``later`` in the body
    10  sizes_met: what the trace has met of sizes and numbers (packages/dynamo/size_history.py)
    11  tensors that a graph holds, optimizers
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

from precompiled.core.errors import CorruptArtifact
from precompiled.store.artifact_format import canonical, digest

FORMAT = 12
SUFFIX = ".entry"
MAX_ENTRY_BYTES = 256 << 20
MAX_HEADER_BYTES = 1 << 20  # the first line; of a longer one no header is read without its entry
# Entries that one function may have; many, since some functions are part of every model (decorators of libraries).
MAX_ENTRIES = 256
# Entries that may differ in ``sources`` alone: a library's function is part of several programs.
MAX_PROGRAMS = 32

# The module of the function that Dynamo wraps around what is torch's own: one function for all such modules.
WRAPPER = "torch._dynamo.external_utils"

_NAME = re.compile(r"[0-9a-f]{64}\.entry")


@dataclass(frozen=True)
class Header:
    """Facts about an entry that are read without running its code. No times, no process ids: equal entries are one."""

    function: str  # the key of the function: the name of the directory
    module: str
    qualname: str
    code: str  # digest of its code
    one_graph: bool  # fullgraph=True
    kind: str  # "compiled" or "skipped"
    # Facts that must be equal in the process that uses the entry: name -> text or digest. People are shown the names.
    requires: dict[str, str] = field(default_factory=dict)
    artifacts: list[str] = field(default_factory=list)  # keys of the graphs' artifacts
    # Of the locals that have guards: fingerprints, to compare without decoding the body (guard_facts).
    locals: dict[str, str] = field(default_factory=dict)
    guards: int = 0
    # Digest of what the entry guards on and does, without lines of code: an edit that moves lines keeps it.
    meaning: str = ""
    program: str = ""  # bytecode digest: of the bytecode, and of what Dynamo put into its globals
    # Digest of the source files of the process that made it (packages/source_files.py); "": for any process.
    sources: str = ""
    # Digest of what of these can change the program (packages/program_text.py); "" where nobody asked for it.
    sources_code: str = ""
    # Whether it was traced before another call could tell Dynamo which sizes change (packages/audit.py).
    first: bool = False
    format: int = FORMAT


@dataclass(frozen=True)
class Told:
    """One guard, for people. ``fact``: the description of what is at its source; ``place``: the user's line of code."""

    source: str
    kind: str
    parameters: str
    fact: Any
    place: str


@dataclass(frozen=True)
class About:
    """What an entry guards on, to be shown and compared without running any of it."""

    guards: list[Told] = field(default_factory=list)
    inlined: list[list[str]] = field(default_factory=list)  # [module and name, digest of its code]
    sizes: dict[str, Any] = field(default_factory=dict)  # source of a tensor -> its sizes, None for any size
    state: str = ""  # Dynamo's global state
    seen: list[list[Any]] = field(default_factory=list)  # facts without a guard (packages/dynamo/unguarded.py)
    reason: str = ""  # of a skipped frame: why Dynamo left it as it is

    def without_places(self) -> About:
        """The same without the user's lines of code, for a file that goes to other hosts."""
        return dataclasses.replace(self, guards=[dataclasses.replace(guard, place="") for guard in self.guards])

    def to_bytes(self) -> bytes:
        # As canonical(), but with the repr of values that have no JSON: facts are only compared.
        return json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"), default=repr).encode()

    @staticmethod
    def parse(data: bytes) -> About:
        """The inverse of ``to_bytes``. Raises CorruptArtifact."""
        try:
            raw = json.loads(data)
            return About(**{**raw, "guards": [Told(**guard) for guard in raw["guards"]]})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CorruptArtifact(f"a package entry says nothing of itself: {error}", code="package-corrupt") from error


def files_of(header: Header, about: About) -> set[str]:
    """One of these has a main program's function, by the places of its guards: those of functions of its name. Empty
    for another module's, and where it is not known.

    A notebook's cell is none: it is named by its text, so an edit of it would be another program.
    """
    own = f", in {header.qualname.rpartition('.')[2]}"
    found = {guard.place.removesuffix(own).rpartition(":")[0] for guard in about.guards if guard.place.endswith(own)}
    is_told = header.module == "__main__" and not any(file[:1] == "<" or "/ipykernel_" in file for file in found)
    return found if is_told else set()


def are_of_other_files(one: set[str], other: set[str]) -> bool:
    """Whether two main programs are others, by ``files_of``."""
    return bool(one) and bool(other) and not one & other


def function_key(module: str, qualname: str, code: str, *, one_graph: bool) -> str:
    """The name of a function's directory; ``code``: the digest of its code."""
    return hashlib.sha256(json.dumps([FORMAT, module, qualname, code, one_graph]).encode()).hexdigest()


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def seal(header: Header, about: bytes, body: bytes) -> tuple[str, bytes]:
    """The name and the content of an entry's file."""
    content = b"\n".join((canonical(header), about, body))
    return digest(content) + SUFFIX, content


def open_entry(name: str, content: bytes, function: str) -> tuple[Header, bytes, bytes]:
    """Header, about and body of a file's content; raises CorruptArtifact unless its name is its digest."""
    if not is_name(name) or digest(content) != name.removesuffix(SUFFIX):
        raise CorruptArtifact(f"the package entry {name[:16]} does not match its digest", code="package-corrupt")
    line, _, rest = content.partition(b"\n")
    about, newline, body = rest.partition(b"\n")
    header = parse_header(line)
    if not newline or header.function != function:
        raise CorruptArtifact(f"a package entry of another function, {header.qualname}", code="package-corrupt")
    return header, about, body


def parse_header(line: bytes) -> Header:
    """The header in an entry's first line; raises CorruptArtifact."""
    try:
        raw = json.loads(line)
        if raw.get("format") != FORMAT:
            raise CorruptArtifact(f"a package of format {raw.get('format')}, this is format {FORMAT}",
                                  code="package-format")  # fmt: skip
        return Header(**raw)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptArtifact(f"not a package entry: {error}", code="package-corrupt") from error


def seal_refusal(header: Header, reason: str) -> bytes:
    """The content of the file that takes a function's packages out of use."""
    return json.dumps({"function": f"{header.module}.{header.qualname}", "reason": reason}).encode()


def open_refusal(content: bytes) -> dict[str, str]:
    """``function`` and ``reason``; an unreadable file takes the packages out of use as well."""
    try:
        raw = json.loads(content)
        return {"function": str(raw["function"]), "reason": str(raw["reason"])}
    except (ValueError, TypeError, KeyError, RecursionError):
        return {"function": "", "reason": "an audit took its packages out of use, and left no readable reason"}
