"""Decides whether an entry fits a live frame, and gives the entry to Dynamo.

Dynamo gets the same ``GuardedCode`` as from a trace, and caches it. So Dynamo itself handles recompile limits, the
match of backends, ``torch.compiler.reset`` and explanations of failed guards. Torch's second table of code
(``_load_precompile_entry``) is not used.

Private names: torch._dynamo.convert_frame.{get_compile_id, input_codes, output_codes, orig_code_map},
torch._dynamo.types.{GuardedCode, ConvertFrameReturn, ConvertFrameReturn.skip_reason (2.13, 2.15), wrap_guarded_code},
torch._dynamo.utils.{CleanupHook, CleanupManager}, torch._guards.{compile_context, CompileContext},
torch._dynamo.disable, torch._dynamo.trace_rules.{_lazy_module_init, _maybe_init_lazy_module}. Checked on 2.11.0,
2.13.0, 2.15.0.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch._dynamo import convert_frame, trace_rules
from torch._dynamo.types import ConvertFrameReturn, GuardedCode, wrap_guarded_code
from torch._dynamo.utils import CleanupHook, CleanupManager
from torch._guards import CompileContext, compile_context

from precompiled.core.names import attribute_at, object_at
from precompiled.packages.describe.codes import namedtuple_scope
from precompiled.packages.describe.descriptions import Descriptions
from precompiled.packages.describe.errors import Mismatch
from precompiled.packages.describe.object_paths import codes_at, locals_digest
from precompiled.packages.dynamo import (
    dynamo_state,
    guard_facts,
    optimizers,
    size_history,
    split_graphs,
    unguarded,
)
from precompiled.packages.dynamo.frame_entry import Body, Frame, SkippedFrame
from precompiled.packages.dynamo.guard_building import Rebuilder
from precompiled.packages.dynamo.guard_facts import GuardFact, quick_fingerprint

# Kinds of items in ``Body.installed`` that represent the globals of functions.
_SCOPES = ("scope", "namedtuple", "globals of functions")
# Kinds of items in ``Body.installed`` that ``usable`` puts into the frame's globals.
_FIRST = ("builtins", "module", "named", "weak reference", *_SCOPES)


def passed_over(locals_: dict[str, str], frame: Frame) -> str | None:
    """Compare an entry's fingerprints of locals with the frame.

    Returns why the entry cannot serve the frame, or None if it might.
    """
    for name, before in locals_.items():
        here = quick_fingerprint(frame.local[name]) if name in frame.local else "absent"
        if here != before:
            return f"L[{name!r}]: {here} here, {before} when it was traced"
    return None


def usable(
    body: Body,
    frame: Frame,
    described: Descriptions,
    name: Callable[[str], str],
    undo: contextlib.ExitStack,
    *,
    check_source: bool = True,
) -> Rebuilder:
    """Compare the live frame with all that an entry depends on.

    Changes some of the program's objects, and appends callbacks to ``undo`` that undo these changes. Raises Mismatch
    with the first difference.
    """
    modules = [what for _name, kind, what in body.installed if kind == "module"]
    modules += [module for module, *_asked in body.assumed_constant]
    _import([*body.imports.values(), *modules], body.inlined, body.guards.guards, frame)
    if check_source and (changed := changed_source(body.inlined)) is not None:
        raise Mismatch(f"the source of {changed} has changed")
    with _aliases(body, frame, name) as installed:
        rebuilder = Rebuilder(body.guards, frame.code, frame.local, frame.scope)
        if body.optimizers:
            _prepare(body, frame, undo)
        rebuilder.verify(described, check_source=check_source)
        unguarded.compare(body.unguarded, frame.scope, rebuilder.reader, described, check_source=check_source)
        for module, qualname, values, named, before in body.assumed_constant:
            try:
                now = Descriptions().value(object_at(module, qualname)(*values, **named))
            except Exception as error:  # the function may no longer exist; other entries may fit
                raise Mismatch(f"{module}.{qualname} raises {type(error).__name__}: {error}") from error
            if now != before:
                raise Mismatch(f"{module}.{qualname} returns {now}, but returned {before} when it was traced")
        installed.clear()  # success: the names stay in the globals
    return rebuilder


def _prepare(body: Body, frame: Frame, undo: contextlib.ExitStack) -> None:
    """Prepare optimizers as a trace does, unless guards on values rule the entry out."""
    value_of = _value_of(frame)
    try:
        optimizers.make_capturable(body.optimizers, value_of, undo)
        guard_facts.compare_values(body.guards.guards, guard_facts.SourceReader(frame.local, frame.scope))
        optimizers.prepare(body.optimizers, value_of, undo)
    except (AttributeError, KeyError, TypeError) as error:  # the value is not an optimizer, or its groups differ
        raise Mismatch(f"an optimizer differs: {error}") from error


def _value_of(frame: Frame) -> Callable[[Any], Any]:
    reader = guard_facts.SourceReader(frame.local, frame.scope)
    return lambda source: guard_facts.value_at(source, reader)


def _import(
    modules: Iterable[str], inlined: Iterable[tuple[list[Any], str]], guards: list[GuardFact], frame: Frame
) -> None:
    """Import the modules that the trace used, unless guards on values rule the entry out. Raises Mismatch.

    Also run Dynamo's preparations for new libraries. For einops, these fill a table of backends, on which Dynamo
    guards.
    """
    needed = {*modules, *(place[0] for place, _digest in inlined)}
    unmet = trace_rules._lazy_module_init.keys() & {module.split(".")[0] for module in needed}
    absent = needed - sys.modules.keys()
    if not absent and not unmet:
        return
    guard_facts.compare_values(guards, guard_facts.SourceReader(frame.local, frame.scope))
    for module in sorted(absent):
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:  # the module may raise anything
            raise Mismatch(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
    for library in sorted(unmet):
        try:
            trace_rules._maybe_init_lazy_module(types.SimpleNamespace(__module__=library))
        except Exception as error:
            raise Mismatch(f"Dynamo cannot prepare {library}: {type(error).__name__}: {error}") from error


def rebuilt(
    frame: Frame, rebuilder: Rebuilder
) -> Callable[[list[Callable[..., Any]], Body, Callable[[str], str]], Any]:
    """Build the guards. Returns a function that takes the callables of the graphs and gives the entry to Dynamo.

    Raises Mismatch if the guards do not accept the frame.
    """
    hooks = frame.hooks
    compile_id = convert_frame.get_compile_id(frame.state)
    with compile_context(CompileContext(compile_id)):
        manager = rebuilder.build(hooks.guard_fail_fn if hooks else None)

    def install(functions: list[Callable[..., Any]], body: Body, name: Callable[[str], str]) -> ConvertFrameReturn:
        ours = {name(placeholder) for placeholder, _kind, _what in body.installed}
        absent = unguarded.globals_within(body.code) - ours - frame.scope.keys() - vars(builtins).keys()
        if absent:
            raise Mismatch(f"the bytecode needs the global {sorted(absent)[0]}, which is not here")
        moved = functools.partial(_moved, before=body.code, now=frame.code)
        holding = [
            optimizers.holding(function, graph.held, body.optimizers, _value_of(frame))
            for function, graph in zip(functions, body.graphs, strict=True)
        ]
        cleanups = []
        for placeholder, kind, what in body.installed:
            alias = name(placeholder)
            if kind in ("graph", "graphs in turn"):
                graph = holding[what] if kind == "graph" else split_graphs.called_in_turn(what, holding)
                value: object = torch._dynamo.disable(graph, reason="do not trace Dynamo-compiled graph")
                cleanups.append(CleanupHook.create(frame.scope, alias, value))
            elif kind == "graph of nothing":
                cleanups.append(CleanupHook.create(frame.scope, alias, split_graphs.of_nothing()))
            elif kind == "resume":
                cleanups.append(CleanupHook.create(frame.scope, alias, _resume(moved(what), frame.scope, alias)))
            elif kind == "resume code":
                cleanups.append(CleanupHook.create(frame.scope, alias, moved(what)))
            else:  # ``_aliases`` has already put the value into the globals, for the guards
                cleanups.append(CleanupHook.create(frame.scope, alias, frame.scope.pop(alias)))
        code = moved(body.code)
        convert_frame.input_codes.add(frame.code)
        convert_frame.output_codes.add(code)
        convert_frame.orig_code_map[code] = frame.code
        CleanupManager.instance[code] = cleanups
        rebuilder.mark_static()
        size_history.replay(body.sizes_met, frame.code, frame.local, frame.scope)
        return wrap_guarded_code(GuardedCode(code, manager, compile_id, f"Torch-Compiled Region: {compile_id}"))

    return install


def _moved(code: types.CodeType, before: types.CodeType, now: types.CodeType) -> types.CodeType:
    """Give ``code`` the current file and lines of its function, so that tracebacks show them."""
    if before.co_filename == now.co_filename and before.co_firstlineno == now.co_firstlineno:
        return code
    if code.co_filename != before.co_filename:
        return code  # the bytecode makes a function of another file
    consts = [_moved(const, before, now) if isinstance(const, types.CodeType) else const for const in code.co_consts]
    line = max(1, code.co_firstlineno + now.co_firstlineno - before.co_firstlineno)
    return code.replace(co_filename=now.co_filename, co_firstlineno=line, co_consts=tuple(consts))


def _resume(code: types.CodeType, scope: dict[str, Any], name: str) -> Callable[..., object]:
    """Make a resume function as OutputGraph.install_resume_function_global does."""
    if not code.co_freevars:
        return types.FunctionType(code, scope, name)

    # Dynamo's bytecode calls the result with the closure. functools.partial is written in C, so Dynamo sees no Python
    # frame of this project.
    return functools.partial(types.FunctionType, code, scope, name, None)


@contextlib.contextmanager
def _aliases(body: Body, frame: Frame, name: Callable[[str], str]) -> Iterator[list[str]]:
    """Put modules, builtins and other values into the globals under the names that sources and the bytecode use.

    After an error, remove these names.
    """
    scope = frame.scope
    wanted: dict[str, object] = {}
    for alias, module in body.imports.items():
        wanted[alias] = importlib.import_module(module)
    for placeholder, kind, what in body.installed:
        if kind == "builtins":
            found = scope["__builtins__"]
            wanted[name(placeholder)] = found if isinstance(found, dict) else vars(found)
        elif kind == "module":
            wanted[name(placeholder)] = importlib.import_module(what)
        elif kind == "named":
            wanted[name(placeholder)] = attribute_at(importlib.import_module(what[0]), what[1])
        elif kind in _SCOPES:
            wanted[name(placeholder)] = _scope(kind, what, frame, {**scope, **wanted})
        elif kind == "weak reference":
            reader = guard_facts.SourceReader(frame.local, {**scope, **wanted})
            wanted[name(placeholder)] = weakref.ref(guard_facts.value_at(what, reader))
    added: list[str] = []
    try:
        for alias, value in wanted.items():
            if alias not in scope:
                if not alias.startswith("__"):  # the program's own name: see trace_recording.check_bytecode
                    raise Mismatch(f"the program has not imported {alias}, which the bytecode needs")
                scope[alias] = value
                added.append(alias)
            elif scope[alias] is not value:
                raise Mismatch(f"the global {alias} differs here")
        yield added
    finally:
        for alias in added:
            scope.pop(alias, None)


def _scope(kind: str, what: Any, frame: Frame, scope: Mapping[str, object]) -> dict[str, object]:
    """This process's globals for an item of ``Body.installed`` whose kind is in _SCOPES.

    ``scope``: the globals of the frame. Raises Mismatch.
    """
    if kind == "scope":
        return frame.scope
    if kind == "namedtuple":
        return namedtuple_scope(what)
    reader = guard_facts.SourceReader(frame.local, scope)
    found: dict[str, object] | None = None
    for source, function in what:
        here = guard_facts.globals_of(guard_facts.value_at(source, reader), function)
        if here is None:
            raise Mismatch(f"{source.name} has no function {function} here")
        if found is not None and here is not found:
            raise Mismatch(f"{source.name} {function} has other globals here than {what[0][0].name} {what[0][1]}")
        found = here
    assert found is not None  # an entry names at least one function
    return found


@contextlib.contextmanager
def or_discarded(body: Body, frame: Frame, name: Callable[[str], str], undo: contextlib.ExitStack) -> Iterator[None]:
    """Call ``discard`` if the block raises: guards may not accept the call, or an artifact may not load."""
    try:
        yield
    except BaseException:
        discard(body, frame, name, undo)
        raise


def discard(body: Body, frame: Frame, name: Callable[[str], str], undo: contextlib.ExitStack) -> None:
    """Undo ``usable``: remove its names from the globals, and undo its changes to objects.

    Dynamo's aliases of modules stay.
    """
    for placeholder, kind, _what in body.installed:
        if kind in _FIRST:
            frame.scope.pop(name(placeholder), None)
    undo.close()


def make_skip_result(frame: Frame, kept: SkippedFrame, name: Callable[[str], str]) -> ConvertFrameReturn:
    """Dynamo's result for a frame that Dynamo skipped when the entry was recorded.

    Raises Mismatch if the entry does not fit the call.
    """
    _import(kept.imports.values(), kept.inlined, kept.guards, frame)
    if (changed := changed_source(kept.inlined)) is not None:
        raise Mismatch(f"the source of {changed} has changed")
    if kept.locals != locals_digest(frame.kinds) or kept.tensors != frame.has_tensors():
        raise Mismatch("the types of its arguments differ from those when Dynamo skipped it")
    dynamo_state.check_global_state(kept.global_state)
    scope = frame.scope_with(kept.imports, [name(placeholder) for placeholder in kept.builtins_names])
    for placeholder, kind, what in kept.installed:
        scope[name(placeholder)] = _scope(kind, what, frame, scope)
    reader, described = guard_facts.SourceReader(frame.local, scope), Descriptions()
    guard_facts.compare(kept.guards, reader, described)
    unguarded.compare(kept.unguarded, frame.scope, reader, described, check_source=True)
    return left_alone(frame, kept.reason)


def left_alone(frame: Frame, reason: str) -> ConvertFrameReturn:
    """Dynamo's result for a frame that it does not trace."""
    with contextlib.suppress(Exception):
        convert_frame.input_codes.add(frame.code)
    result = ConvertFrameReturn()
    if hasattr(result, "skip_reason"):
        result.skip_reason = reason
    return result


def changed_source(inlined: Iterable[tuple[list[Any], str]]) -> str | None:
    """Return the name of an inlined function whose source has changed; None if all are unchanged."""
    for place, digest in inlined:
        if digest not in codes_at(place):
            return f"{place[0]}.{'.'.join(place[1])}"
    return None
