"""What a package keeps of a frame, and what is known of a frame while Dynamo compiles it.

Entries are pickles: the names of ``Body``, ``SkippedFrame``, ``Graph``, ``guard_facts.Guards``, ``unguarded.Seen`` and
of their fields, and of ``entry_codec._code``, lie in users' stores. To rename one needs another FORMAT of entries.

Private names: torch._dynamo.convert_frame.has_tensor_in_frame. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch._dynamo import convert_frame

from precompiled.packages.describe.codes import code_digest
from precompiled.packages.describe.errors import NotPortable
from precompiled.packages.dynamo import entry_codec
from precompiled.packages.dynamo.guard_facts import GuardFact, Guards, kind_of
from precompiled.packages.dynamo.trace_log import Asked, TraceLog
from precompiled.packages.dynamo.unguarded import Seen
from precompiled.store.package_format import About

# The attribute of the callables that backend.py gives to Dynamo which holds the graph's Graph (below).
MARK = "_precompiled_graph"


@dataclass(frozen=True)
class Graph:
    """A graph of an entry: what is needed to load its artifact."""

    key: str
    name: str
    modes: dict[str, Any]
    cudagraphs: bool
    size_inputs: list[int]
    modules: dict[str, str]
    device: str


@dataclass(frozen=True)
class Frame:
    """A frame that Dynamo has no code for."""

    code: types.CodeType
    local: dict[str, Any]
    scope: dict[str, Any]
    one_graph: bool
    options: dict[str, Any]  # Inductor's, of torch.compile
    owner: Any  # the backend object, of which each torch.compile() has its own
    hooks: Any  # Dynamo's, of this call
    state: Any  # Dynamo's, of this code object
    first: bool  # Dynamo has nothing of it yet

    def scope_with(self, imports: dict[str, str], builtins_names: Iterable[str]) -> dict[str, Any]:
        """Its globals, with what Dynamo puts there for its sources: modules by alias, and the builtins."""
        made = {alias: importlib.import_module(module) for alias, module in imports.items()}
        return {**self.scope, **made, **dict.fromkeys(builtins_names, vars(builtins))}

    def has_tensors(self) -> bool:
        """Dynamo's own look at a frame before it traces it."""
        proxy = types.SimpleNamespace(
            f_code=self.code, f_locals=self.local, f_globals=self.scope, f_builtins=self.scope.get("__builtins__")
        )
        return bool(convert_frame.has_tensor_in_frame(proxy))

    @property
    def kinds(self) -> dict[str, type]:
        """The types of its locals."""
        return {name: kind_of(value) for name, value in self.local.items()}

    @property
    def module(self) -> str:
        return str(self.scope.get("__name__", ""))

    @property
    def qualname(self) -> str:
        return str(getattr(self.code, "co_qualname", self.code.co_name))


@dataclass
class Body:
    """What is kept of a frame that was compiled: the pickled part of an entry."""

    guards: Guards
    unguarded: Seen
    code: types.CodeType
    imports: dict[str, str]  # alias in the globals -> module
    # What else the bytecode finds in its globals: (name, kind, what).
    installed: list[tuple[str, str, Any]]
    inlined: list[tuple[list[Any], str]]  # place, digest of the code that must be there
    graphs: list[Graph]
    assumed_constant: list[Asked]  # functions that were taken for constant: they are asked again


@dataclass
class SkippedFrame:
    """What is kept of a frame that stays as it is: what that was decided by."""

    reason: str
    locals: str  # digest of names and types
    tensors: bool
    inlined: list[tuple[list[Any], str]]
    imports: dict[str, str]
    builtins_names: list[str]
    guards: list[GuardFact]
    unguarded: Seen
    global_state: str


@dataclass
class Attempt:
    """One attempt to trace a frame: the code that it met, and what it guards on."""

    code: list[types.CodeType]
    imports: dict[str, str]
    builtins_name: str
    guards: list[Any] = field(default_factory=list)  # at the attempt's end: 2.15 clears them when it was discarded


@dataclass
class Traced:
    """What one call of Dynamo's converter made."""

    body: Body | None = None
    names: dict[str, str] = field(default_factory=dict)  # made up by this process -> what stands for them
    locals: dict[str, str] = field(default_factory=dict)  # what a look tells of those with guards
    about: About = field(default_factory=About)
    problem: NotPortable | None = None
    trace_log: TraceLog = field(default_factory=TraceLog)
    # Dynamo begins anew where it finds that it must break the graph.
    attempts: list[Attempt] = field(default_factory=list)
    skip: str | None = None  # why the frame runs as it is; None when it was compiled

    @property
    def imports(self) -> dict[str, str]:
        """Modules by their alias in the globals; also what only an attempt that was given up had read through."""
        return {alias: module for attempt in self.attempts for alias, module in attempt.imports.items()}


def bytecode_digest(body: Body, names: Mapping[str, str]) -> str:
    """Digest of what an entry does: its bytecode, and what that finds in its globals; graphs by their keys.

    ``names``: those of this process -> what stands for them.
    """
    made = [body.code, *(what for _name, _kind, what in body.installed)]
    made = entry_codec.decode(entry_codec.encode(made, names), lambda placeholder: placeholder)
    shown = [code_digest(what) if isinstance(what, types.CodeType) else what for what in made]
    return hashlib.sha256(repr([shown, [graph.key for graph in body.graphs], body.imports]).encode()).hexdigest()


def meaning(body: Body, about: About, bytecode: str) -> str:
    """Digest of what an entry says and does, without files and lines. ``bytecode``: its ``bytecode_digest``."""
    asked = [repr(item) for item in body.assumed_constant]
    return hashlib.sha256(repr([bytecode, asked]).encode() + about.without_places().to_bytes()).hexdigest()
