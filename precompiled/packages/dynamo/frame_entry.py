"""Defines the data of a stored entry, and the data of a frame and its trace while Dynamo compiles the frame.

Entries in users' stores are pickles, which contain the names of ``entry_codec._code``, of ``Body``, ``SkippedFrame``,
``Graph``, ``guard_facts.Guards``, ``unguarded.Seen``, ``size_history.Kept``, and of their fields. If you rename one,
raise the FORMAT of entries.

Private names: torch._dynamo.convert_frame.has_tensor_in_frame, torch._dynamo.guards.ShapeCodeParts.python_code_parts.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dynamo import convert_frame

from precompiled.core import files
from precompiled.packages.describe.codes import code_digest, outermost, qualname
from precompiled.packages.describe.errors import NotPortable
from precompiled.packages.dynamo import entry_codec
from precompiled.packages.dynamo.guard_facts import GuardFact, Guards
from precompiled.packages.dynamo.optimizers import Prepared
from precompiled.packages.dynamo.size_history import Kept, Met
from precompiled.packages.dynamo.trace_errors import shown_name
from precompiled.packages.dynamo.trace_log import Asked, TraceLog
from precompiled.packages.dynamo.unguarded import Seen
from precompiled.packages.dynamo.value_facts import kind_of
from precompiled.store.package_format import About, function_key

# The callable of a graph has an attribute of this name with the graph's ``Graph`` (below), for trace_recording.py.
MARK = "_precompiled_graph"
# The callable of a graph has an attribute of this name with the tensors that the callable adds to its arguments
# (torch_internals/client/graph_attributes.py).
HELD = "_precompiled_held"


@dataclass(frozen=True)
class Graph:
    """A graph of an entry, with all that loading its artifact requires."""

    key: str
    name: str
    modes: dict[str, object]
    cudagraphs: bool
    size_inputs: list[int]
    modules: dict[str, str]
    device: str
    held: tuple[Any, ...] = ()  # sources of the tensors that the callable takes after the graph's own arguments
    groups: tuple[str, ...] = ()  # names of the graph's process groups


@dataclass(frozen=True)
class Frame:
    """A frame for which Dynamo has no code that fits."""

    code: types.CodeType
    local: dict[str, object]
    scope: dict[str, Any]
    one_graph: bool
    options: dict[str, object]  # the options of torch.compile, for Inductor
    owner: object  # the backend object that torch.compile() made
    hooks: Any  # Dynamo's hooks of this call
    state: Any  # Dynamo's state of this code object
    first: bool  # whether Dynamo has no compiled code for this frame's function

    def scope_with(self, imports: dict[str, str], builtins_names: Iterable[str]) -> dict[str, object]:
        """The frame's globals, with the names that Dynamo adds for sources: aliases of modules, and builtins."""
        made = {alias: importlib.import_module(module) for alias, module in imports.items()}
        return {**self.scope, **made, **dict.fromkeys(builtins_names, vars(builtins))}

    def has_tensors(self) -> bool:
        """Whether the frame has tensors by Dynamo's own check, so that Dynamo would trace it."""
        proxy = types.SimpleNamespace(
            f_code=self.code, f_locals=self.local, f_globals=self.scope, f_builtins=self.scope.get("__builtins__")
        )
        return bool(convert_frame.has_tensor_in_frame(proxy))

    @property
    def kinds(self) -> dict[str, type]:
        """The types of the frame's locals."""
        return {name: kind_of(value) for name, value in self.local.items()}

    @property
    def module(self) -> str:
        return str(self.scope.get("__name__", ""))

    @property
    def qualname(self) -> str:
        return qualname(self.code)

    @property
    def shown_name(self) -> str:
        """The name for reports. For a module of torch's own (nn.Sequential), the name of its class."""
        return shown_name(self.code, self.local, self.scope)

    @property
    def function_key(self) -> str:
        """The name of the store's directory for the entries of the frame's function."""
        return function_key(self.module, self.qualname, code_digest(self.code), one_graph=self.one_graph)


@dataclass
class Body:
    """The pickled part of an entry for a compiled frame."""

    guards: Guards
    unguarded: Seen
    code: types.CodeType
    imports: dict[str, str]  # maps an alias in the globals to its module
    # Other names in the globals that the bytecode uses: (name, kind, the value or the data to make the value).
    installed: list[tuple[str, str, Any]]
    inlined: list[tuple[list[Any], str]]  # the place of code, the digest of the code
    graphs: list[Graph]
    assumed_constant: list[Asked]  # functions that the trace assumed to be constant; a later process calls them again
    # The described functions that had not run when the trace ended. Maps module and name to a digest of the code.
    later: dict[str, str] = field(default_factory=dict)
    sizes_met: tuple[Kept, ...] = ()  # sizes and numbers that this trace read, for the next trace
    optimizers: tuple[Prepared, ...] = ()  # optimizers whose groups the trace read


@dataclass
class SkippedFrame:
    """The pickled part of an entry for a frame that Dynamo skipped: all that the skip may depend on."""

    reason: str
    locals: str  # digest of names and types
    tensors: bool
    inlined: list[tuple[list[Any], str]]
    imports: dict[str, str]
    builtins_names: list[str]
    guards: list[GuardFact]
    unguarded: Seen
    global_state: str
    # As Body.installed. Absent in older entries.
    installed: tuple[tuple[str, str, Any], ...] = ()


@dataclass
class Attempt:
    """One attempt to trace a frame: the code objects that it reached, its guards, and the names that Dynamo added to
    the globals (for modules, builtins, and functions' globals).
    """

    code: list[types.CodeType]
    imports: dict[str, str]
    builtins_name: str
    # maps a name of this attempt to the functions' globals that it stands for
    scopes: dict[str, dict[str, Any]] = field(default_factory=dict)
    guards: list[Any] = field(default_factory=list)  # a copy, because torch 2.15 clears a discarded attempt's guards


@dataclass
class Traced:
    """The result of one call of Dynamo's converter."""

    body: Body | None = None
    # maps a name that Dynamo generated to its placeholder
    names: dict[str, str] = field(default_factory=dict)
    locals: dict[str, str] = field(default_factory=dict)  # fingerprints of the locals with guards
    about: About = field(default_factory=About)
    problem: NotPortable | None = None
    described: set[str] = field(default_factory=set)  # digests of all described code
    trace_log: TraceLog = field(default_factory=TraceLog)
    sizes_met: list[Met] = field(default_factory=list)
    # Dynamo starts a new attempt if it must break the graph.
    attempts: list[Attempt] = field(default_factory=list)
    skip: str | None = None  # why Dynamo did not compile the frame; None if it did
    error: str = ""  # the error that torch raised during the trace, and perhaps suppressed
    result: Any = None  # the converter's result

    @property
    def imports(self) -> dict[str, str]:
        """Map each alias in the globals to its module, including the aliases of discarded attempts."""
        return {alias: module for attempt in self.attempts for alias, module in attempt.imports.items()}

    @property
    def scopes(self) -> dict[str, dict[str, Any]]:
        """Map each name that stands for functions' globals, in any attempt, to these globals."""
        return {name: scope for attempt in self.attempts for name, scope in attempt.scopes.items()}

    @property
    def guards(self) -> list[Any]:
        """The guards of all finished attempts."""
        return [guard for attempt in self.attempts for guard in attempt.guards]

    def named(self, name: str, kind: str) -> str:
        """Make a placeholder for a name that Dynamo generated."""
        self.names[name] = f"{kind.replace(' ', '_')}{len(self.names)}"
        return self.names[name]


def qualnames(traced: Traced) -> set[str]:
    """The names of all functions that a trace reached."""
    return {outermost(code) for attempt in traced.attempts for code in attempt.code}


# Functions that return numbers of a device. A trace treats these numbers as constants, but they may differ between GPUs
# of one name.
_DEVICE_NUMBERS = frozenset({"get_device_properties", "mem_get_info"})


def device_numbers(traced: Traced) -> list[str]:
    """The functions by which traced code may query numbers of a device. Empty without a CUDA device."""
    if not torch.cuda.is_available():
        return []
    met = [code for attempt in traced.attempts for code in attempt.code if not files.is_torchs(code.co_filename)]
    return sorted(_DEVICE_NUMBERS.intersection(name for code in met for name in code.co_names))


def bytecode_digest(body: Body, names: Mapping[str, str]) -> str:
    """Return a digest of an entry's bytecode, its graphs' keys, and Dynamo's values in the globals.

    ``names`` maps names that Dynamo generated to placeholders.
    """
    made = [body.code, *(what for _name, _kind, what in body.installed)]
    made += [[source.name for source in graph.held] for graph in body.graphs]
    made = entry_codec.decode(entry_codec.encode(made, names), lambda placeholder: placeholder)
    shown = [code_digest(what) if isinstance(what, types.CodeType) else what for what in made]
    return hashlib.sha256(repr([shown, [graph.key for graph in body.graphs], body.imports]).encode()).hexdigest()


def meaning(body: Body, about: About, bytecode: str) -> str:
    """Return a digest of an entry's guards and effects, without line numbers.

    ``bytecode``: the entry's ``bytecode_digest``.
    """
    asked = [repr(item) for item in body.assumed_constant]
    shapes = body.guards.shapes  # no fact covers these, and two traces may differ only in ranges of sizes
    sizes = sorted(shapes.python_code_parts.exprs) if shapes is not None else []
    return hashlib.sha256(repr([bytecode, asked, sizes]).encode() + about.without_places().to_bytes()).hexdigest()
