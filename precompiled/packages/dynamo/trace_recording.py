"""Records the parts of an entry while Dynamo traces a frame.

``CheckFunctionManager.serialize_guards`` is the only place where Dynamo holds all guards, their values and the
expressions of symbolic sizes (``save_guards``). So this file reads all of these in that function. Facts without a guard
are noted while Dynamo still traces: the code that each attempt reached, and the values that the attempt read
(trace_patches.py).

Private names: torch._dynamo.convert_frame.{CheckFunctionManager.serialize_guards, DynamoOutput.build_guards},
torch._dynamo.output_graph.OutputGraph.{installed_globals, install_global_unsafe, import_sources,
name_of_builtins_dict_key_in_fglobals, __init__, cleanup, guards, tracing_context, call_user_compiler},
torch._guards.TracingContext.traced_code, torch._dynamo.resume_execution.TORCH_DYNAMO_RESUME_IN_PREFIX. Checked on
2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import dis
import functools
import re
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

import torch
from torch._dynamo import convert_frame, output_graph

from precompiled.core import interruptions
from precompiled.core.definitions import codes_within
from precompiled.core.names import object_at
from precompiled.packages.describe.codes import code_digest, namedtuple_scope, qualname
from precompiled.packages.describe.descriptions import Descriptions
from precompiled.packages.describe.errors import NotPortable
from precompiled.packages.describe.object_paths import Places, locals_digest
from precompiled.packages.dynamo import (
    dynamo_state,
    guard_facts,
    native_calls,
    optimizers,
    size_history,
    split_graphs,
    trace_patches,
    unguarded,
)
from precompiled.packages.dynamo.frame_entry import HELD, MARK, Attempt, Body, Frame, Graph, SkippedFrame, Traced
from precompiled.packages.dynamo.guard_facts import quick_fingerprint
from precompiled.packages.dynamo.trace_log import TraceLog
from precompiled.torch_internals.patches import Patches

_RESUME = "torch_dynamo_resume_in"
# The bytecode's local variable for a context manager around a graph break. The variable's numbers differ between
# processes.
_OF_A_CONTEXT = re.compile(r"___context_manager_\d+_\d+")
_now = threading.local()
_patches = Patches()
_ends: list[Callable[[], None]] = []


# ---------------------------------------------------------------------- switching on


def install() -> None:
    """Make ``tracing`` record what Dynamo traces. Idempotent."""
    if _patches:
        return
    _patches.replace(convert_frame.DynamoOutput, "build_guards", _recorded)
    _patches.replace(convert_frame, "CheckFunctionManager", lambda _original: _Recording)
    _patches.replace(output_graph.OutputGraph, "__init__", _attempted)
    _patches.replace(output_graph.OutputGraph, "cleanup", _ended)
    _patches.replace(output_graph.OutputGraph, "call_user_compiler", _unwatched)
    _patches.replace(output_graph.OutputGraph, "install_global_unsafe", _noted_scope)
    _ends.append(trace_patches.wrap(lambda: _now.traced.trace_log if is_tracing() else None))
    _ends.append(size_history.wrap(lambda: _now.traced.sizes_met if is_tracing() else None, _looking))


def remove() -> None:
    """Restore Dynamo's own functions. Idempotent."""
    while _ends:
        _ends.pop()()
    _patches.undo()


def is_tracing() -> bool:
    """Whether this thread already records a trace. Dynamo's converters call each other."""
    return getattr(_now, "traced", None) is not None


def note_error(text: str) -> None:
    """Note the error that ends this thread's trace."""
    _now.traced.error = text


def _looking() -> contextlib.AbstractContextManager[None]:
    log = _now.traced.trace_log if is_tracing() else TraceLog()  # without a recording, drop notes
    return log.looking()


@contextlib.contextmanager
def tracing(problem: NotPortable | None) -> Iterator[Traced]:
    """In this block, record the trace of a frame. ``problem``: why the trace cannot be kept, if known."""
    with native_calls.watching() as noticed:
        _now.traced = Traced(problem=problem, trace_log=TraceLog(native=noticed))
        try:
            yield _now.traced
        finally:
            _now.traced = None


def _attempted(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def init(self: Any, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        traced = getattr(_now, "traced", None)
        if traced is not None:
            with traced.trace_log.looking():
                context = self.tracing_context
                traced.attempts.append(
                    Attempt(context.traced_code, self.import_sources, self.name_of_builtins_dict_key_in_fglobals)
                )

    return init


def _noted_scope(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def install_global_unsafe(self: object, name: str, value: object) -> None:
        original(self, name, value)
        traced = getattr(_now, "traced", None)
        if traced is not None and traced.attempts and type(value) is dict and value is not vars(builtins):
            traced.attempts[-1].scopes[name] = value

    return install_global_unsafe


def _unwatched(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def call_user_compiler(self: object, *args: object, **kwargs: object) -> object:
        with native_calls.paused():
            return original(self, *args, **kwargs)

    return call_user_compiler


def _ended(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def cleanup(self: Any) -> None:
        traced = getattr(_now, "traced", None)
        if traced is not None and traced.attempts:
            traced.attempts[-1].guards = list(self.guards)
        original(self)

    return cleanup


# ---------------------------------------------------------------------- compiled frames


def _recorded(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def build_guards(
        self: object, code: object, hooks: object = None, save: bool = False, *args: object, **kwargs: object
    ) -> object:
        traced = getattr(_now, "traced", None)
        if traced is None or save:
            return original(self, code, hooks, save, *args, **kwargs)
        _now.saving = True
        try:
            with native_calls.paused():
                return original(self, code, hooks, True, *args, **kwargs)
        finally:
            _now.saving = False

    return build_guards


class _Recording(convert_frame.CheckFunctionManager):  # type: ignore[misc, unused-ignore]
    def serialize_guards(
        self, builder: object, sorted_guards: object, output_graph: object, *rest: object, **named: object
    ) -> bytes:
        if not getattr(_now, "saving", False):
            return super().serialize_guards(builder, sorted_guards, output_graph, *rest, **named)  # type: ignore[no-any-return, unused-ignore]
        traced = _now.traced
        traced.problem = traced.problem or traced.trace_log.problem
        if traced.problem is not None:
            return b""
        try:
            _record(traced, builder, sorted_guards, output_graph, self.shape_code_parts)
        except NotPortable as reason:
            interruptions.pass_on(reason)
            traced.problem = reason
        except BaseException as error:  # noqa: BLE001 - an error of ours must not fail a good trace
            interruptions.pass_on(error)
            traced.problem = NotPortable(f"{type(error).__name__} at a guard", code="package-internal-error")
        return b""


def _record(traced: Traced, builder: Any, guards: Any, output: Any, shapes: object) -> None:
    described, places = Descriptions(), Places()
    graphs: list[Graph] = []
    installed: list[tuple[str, str, object]] = []
    for name in sorted(output.installed_globals - traced.scopes.keys(), key=_in_order):
        kind, what = _installed(name, output.global_scope[name], graphs, guards, builder)
        installed.append((traced.named(name, kind), kind, what))
    installed += _scopes(traced, [*guards, *traced.guards], output.global_scope, builder, output.installed_globals)
    kept = guard_facts.describe(builder, guards, output, shapes, described)
    inlined = inlined_code(traced, builder.f_code, places)
    # Inner functions are part of the frame's code, and the digest of that code selects an entry.
    known = {digest for _place, digest in inlined} | {code_digest(code) for code in codes_within(builder.f_code)}
    codes = {code_digest(code): code for code in output.tracing_context.traced_code}
    root = code_digest(builder.f_code)
    for digest, code in codes.items():
        if digest == root:
            continue
        unguarded.check_code(code)
        if unguarded.is_standard(code.co_filename):
            continue  # the entry requires this version of Python, and so the same standard library
        if digest not in known and digest not in described.covered:
            raise NotPortable(
                f"{qualname(code)} was inlined, and its code cannot be found by name",
                code="package-inlined",
            )
    unguarded.check_code(builder.f_code)
    local = output.local_scope
    guarded = (name for name in guard_facts.guarded_locals(guards) if name in local)
    traced.locals = {name: quick_fingerprint(local[name]) for name in guarded}
    # At a restart, torch 2.15 removes an attempt's names from the globals, but the attempt's sources need these names.
    reader = guard_facts.SourceReader(local, {**output.global_scope, **traced.scopes}) if traced.scopes else builder
    seen = unguarded.describe_facts(
        traced.trace_log, guards, codes.values(), builder.f_code, output.global_scope, places, reader, described
    )
    traced.about = guard_facts.about(guards, kept, inlined, seen.facts())
    traced.described = described.covered
    traced.body = Body(
        kept,
        seen,
        builder.f_code,
        traced.imports,
        installed,
        inlined,
        graphs,
        [traced.trace_log.asked[name] for name in sorted(traced.trace_log.asked)],
        sizes_met=size_history.convert_sizes(traced.sizes_met, builder.f_code, places),
        optimizers=optimizers.prepared_optimizers(guards, traced.trace_log),
    )


def _scopes(
    traced: Traced,
    guards: Sequence[object],
    scope: Mapping[str, object],
    reader: object,
    needed: Set[str] = frozenset(),
) -> Iterator[tuple[str, str, object]]:
    """Describe the functions' globals that any attempt used, because the reads of earlier attempts count as well.

    ``needed``: names that the entry itself uses. Raises NotPortable if one of these names has no description.
    """
    placeholders: dict[int, str] = {}
    for name, value in traced.scopes.items():
        if id(value) in placeholders:  # each attempt has its own name for these globals
            traced.names[name] = placeholders[id(value)]
            continue
        if value is scope:
            kind, what = "scope", None
        elif "_tuple_new" in value and value == namedtuple_scope(value.get("__name__", "")):
            kind, what = "namedtuple", value["__name__"]
        elif found := guard_facts.functions_with_globals(value, guards, reader):
            kind, what = "globals of functions", found
        elif name in needed:
            raise NotPortable(f"Dynamo put a dict into the globals ({name})", code="package-global")
        else:
            continue
        placeholders[id(value)] = traced.named(name, kind)
        yield placeholders[id(value)], kind, what


def _in_order(name: str) -> list[object]:
    """A key that sorts graph 9 before graph 10. The numbers differ between processes."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def _installed(name: str, value: Any, graphs: list[Graph], guards: list[Any], reader: Any) -> tuple[str, object]:
    """Return kind and data of a value that Dynamo put into the globals, so that a later process can rebuild the value.

    Raises NotPortable if a later process cannot.
    """
    if value is vars(builtins):
        return "builtins", None

    def number_of(function: object) -> int | None:
        graph = getattr(function, MARK, None)
        if not isinstance(graph, Graph):
            return None
        held = optimizers.sources_of(getattr(function, HELD, ()), guards, reader)
        graphs.append(dataclasses.replace(graph, held=held))
        return len(graphs) - 1

    if (number := number_of(value)) is not None:
        return "graph", number
    if (module := split_graphs.module_of(value)) is not None and name.startswith("__compiled_fn"):
        return "graphs in turn", split_graphs.steps_of(module, number_of)
    if split_graphs.is_of_nothing(value):
        return "graph of nothing", None
    if isinstance(value, weakref.ref) and isinstance(of := value(), (torch.Tensor, torch.optim.Optimizer)):
        return "weak reference", optimizers.sources_of([of], guards, reader)[0]
    if isinstance(value, types.FunctionType) and value.__code__.co_name.startswith(_RESUME):
        return "resume", value.__code__
    if isinstance(value, types.FunctionType) and value.__name__ == "_make_fn":
        code = next(
            (cell.cell_contents for cell in value.__closure__ or () if isinstance(cell.cell_contents, types.CodeType)),
            None,
        )
        if code is not None:
            return "resume", code
    if isinstance(value, types.CodeType) and value.co_name.startswith(_RESUME):
        return "resume code", value  # in torch 2.11 the bytecode itself makes the function
    if isinstance(value, types.ModuleType):
        return "module", value.__name__
    if (place := _place_in_python(value)) is not None:
        return "named", place
    if name.startswith("__compiled_fn"):
        said = "a graph of it is for this process alone: compiled in process, with CUDA graphs or with frozen weights"
        raise NotPortable(said, code="package-graph")
    raise NotPortable(f"Dynamo put a {type(value).__qualname__} into the globals ({name})", code="package-global")


def _place_in_python(value: object) -> tuple[str, str] | None:
    """Module and name of one of Python's own types or C functions: ``iter``, ``collections.deque``."""
    if not isinstance(value, (type, types.BuiltinFunctionType)) or value.__module__ not in sys.stdlib_module_names:
        return None
    place = value.__module__, value.__qualname__
    return place if object_at(*place) is value else None


def inlined_code(traced: Traced, root: types.CodeType, places: Places) -> list[tuple[list[object], str]]:
    """Return places and digests of all code that any attempt reached.

    That code may affect where a graph breaks and which frames Dynamo skips. Ignores code without a place. ``_record``
    refuses the trace if such code is part of the result.
    """
    own = code_digest(root)
    codes = {code_digest(code): code for attempt in traced.attempts for code in attempt.code}
    found = [(places.place(code), digest) for digest, code in codes.items() if digest != own]
    return sorted((place, digest) for place, digest in found if place is not None)


def check_bytecode(traced: Traced, frame: Frame) -> None:
    """Refuse bytecode that is valid only in this process. Record local names that differ between processes.

    In other processes, bytecode is invalid if it reads a global that they lack (``alpha_1``), contains an address, or
    builds a set in this process's order.
    """
    assert traced.body is not None
    made = [traced.body.code, *(what for _, _, what in traced.body.installed if isinstance(what, types.CodeType))]
    for code in (inner for whole in made for inner in codes_within(whole)):
        for name in code.co_varnames:
            if name not in traced.names and _OF_A_CONTEXT.fullmatch(name):
                traced.named(name, "context")
    written = {name for attempt in traced.attempts for code in attempt.code for name in code.co_names}
    known = {*traced.names, *traced.body.imports, *written, *frame.code.co_names, *vars(builtins)}
    unknown = unguarded.globals_within(traced.body.code) - known
    # If the program imported a module, the bytecode uses the program's name for it (torch/_dynamo/codegen.py:
    # create_load_python_module).
    modules = {name: found.__name__ for name in unknown if isinstance(found := frame.scope.get(name), types.ModuleType)}
    traced.body.imports |= {name: of for name, of in modules.items() if of.rpartition(".")[2] == name}
    # A nested function may call functions that the frame's own module defines (torch's CheckpointWrapper.forward).
    # Exempt these.
    unknown = {name for name in unknown if not _is_defined_there(frame, name)}
    if unknown := unknown - traced.body.imports.keys():
        traced.problem = NotPortable(f"Dynamo put {min(unknown)} into the globals", code="package-global")
    elif addresses := unguarded.addresses_within(traced.body.code):
        said = f"the bytecode contains an address of this process: {addresses[0]!r}"
        traced.problem = NotPortable(said, code="package-id")
    elif any(item.opname == "BUILD_SET" and (item.arg or 0) > 1 for item in dis.get_instructions(traced.body.code)):
        # The frame changed a set of the user's program. The entry's results would be right, but an audit would refuse
        # the entry.
        said = "the frame changes a set, and its bytecode has the set in the order of this process"
        traced.problem = NotPortable(said, code="package-set-order")
    else:
        return
    traced.body = None


def _is_defined_there(frame: Frame, name: str) -> bool:
    found = frame.scope.get(name)
    return isinstance(found, types.FunctionType) and found is object_at(frame.module, name) and found.__name__ == name


# ---------------------------------------------------------------------- skipped frames


def make_skipped_frame(frame: Frame, traced: Traced) -> SkippedFrame:
    """Make an entry's body for a skipped frame: all that the skip may depend on. Raises NotPortable."""
    if traced.trace_log.problem is not None:
        raise traced.trace_log.problem
    if traced.trace_log.asked:
        raise NotPortable(f"Dynamo may have skipped it because of the result of {sorted(traced.trace_log.asked)[0]}")
    if not all(attempt.guards for attempt in traced.attempts):  # every attempt has guards on the global state
        raise NotPortable("this torch does not say why it skipped a frame", code="package-unsupported")
    imports = traced.imports
    guards = {(guard.name, guard.create_fn_name()): guard for guard in traced.guards}
    names = sorted({attempt.builtins_name for attempt in traced.attempts})
    traced.names = {name: f"builtins{number}" for number, name in enumerate(names)}
    reader = guard_facts.SourceReader(frame.local, {**frame.scope_with(imports, names), **traced.scopes})
    installed = tuple(_scopes(traced, list(guards.values()), frame.scope, reader))
    described, places = Descriptions(), Places()
    facts = guard_facts.facts(sorted(guards.values()), reader, described)
    codes = [code for attempt in traced.attempts for code in attempt.code]
    for code in (frame.code, *codes):
        unguarded.check_code(code)
    return SkippedFrame(
        reason=traced.skip or "",
        locals=locals_digest(frame.kinds),
        tensors=frame.has_tensors(),
        inlined=inlined_code(traced, frame.code, places),
        imports=imports,
        builtins_names=[traced.names[name] for name in names],
        guards=facts,
        unguarded=unguarded.describe_facts(
            traced.trace_log, guards.values(), codes, frame.code, frame.scope, places, reader, described
        ),
        global_state=dynamo_state.global_state(),
        installed=installed,
    )
