"""Where Dynamo meets a frame that it has no code for: asked first, told afterwards.

Dynamo calls ``ConvertFrame`` (or, with fullgraph=True, ``ConvertFrameAssert``) for a frame whose guards all failed.
Replacing that method on both classes comes before anything is traced or counted. What is found is given back as the
``GuardedCode`` that tracing would have given: it lands in Dynamo's own cache, so that recompile limits, the match of
backends, ``torch.compiler.reset`` and explanations of failed guards are Dynamo's own. Upstream's second table
(``_load_precompile_entry``) is not used.

After a trace, what is to be kept is read in ``CheckFunctionManager.serialize_guards``, the one place where Dynamo holds
everything at once: the built guards with their values, and the expressions of symbolic sizes (``save_guards``).

Private names: torch._dynamo.convert_frame.{ConvertFrame, ConvertFrameAssert, CheckFunctionManager, DynamoOutput,
has_tensor_in_frame, get_compile_id, input_codes, output_codes, orig_code_map, is_generator}, their attributes
_torchdynamo_orig_backend, _one_graph, _export; torch._dynamo.types.{GuardedCode, ConvertFrameReturn, wrap_guarded_code,
FrameExecStrategy, FrameAction}, torch._dynamo.utils.{CleanupHook, CleanupManager, istype,
maybe_disable_inference_mode}, torch._dynamo.config,
torch._dynamo.decorators._nonrecursive_disable_wrapper_code, torch._guards.{compile_context, CompileContext},
torch._C._dynamo.eval_frame._debug_get_cache_entry_list, torch._TorchCompileInductorWrapper, torch._TorchCompileWrapper,
torch._dynamo.resume_execution.TORCH_DYNAMO_RESUME_IN_PREFIX, OutputGraph.{installed_globals, import_sources,
__init__, cleanup, guards, tracing_context, export}, TracingContext.traced_code,
torch._dynamo.utils._get_error_on_graph_break,
torch._dynamo.variables.functions.invoke_and_store_as_constant.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import hashlib
import importlib
import os
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch._dynamo.config
import torch._dynamo.decorators
import torch._dynamo.trace_rules
import torch._dynamo.variables.functions as dynamo_functions
from torch._dynamo import convert_frame, output_graph
from torch._dynamo.types import ConvertFrameReturn, FrameAction, GuardedCode, wrap_guarded_code
from torch._dynamo.utils import CleanupHook, CleanupManager, maybe_disable_inference_mode
from torch._guards import CompileContext, compile_context

from precompiled.package.format import About
from precompiled.package.identity import (
    Descriptions,
    NotPortable,
    Places,
    code_digest,
    codes_at,
    codes_within,
    locals_digest,
)
from precompiled.torch_internals import modes, package_guards, package_seen, route
from precompiled.torch_internals.package_guards import Guards, Mismatch, Rebuilder, look
from precompiled.torch_internals.package_seen import Seen

# Set on what backend.py gives to Dynamo: with which artifact a graph runs (a Graph below).
MARK = "_precompiled_graph"
_ENTRIES = "_precompiled_entries"
_SKIPS = (FrameAction.SKIP, FrameAction.DEFAULT)
_RESUME = "torch_dynamo_resume_in"


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

    @property
    def kinds(self) -> dict[str, type]:
        """The types of its locals."""
        return {name: package_guards.kind_of(value) for name, value in self.local.items()}

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
    seen: Seen
    code: types.CodeType
    imports: dict[str, str]  # alias in the globals -> module
    # What else the bytecode finds in its globals: (name, kind, what).
    installed: list[tuple[str, str, Any]]
    inlined: list[tuple[list[Any], str]]  # place, digest of the code that must be there
    graphs: list[Graph]
    # Functions that the user calls constant: module, qualified name, arguments, keywords, described result.
    asked: list[tuple[str, str, tuple[Any, ...], dict[str, Any], Any]]


@dataclass
class Attempt:
    """One attempt to trace a frame: the code that it met, and what it guards on."""

    code: list[types.CodeType]
    imports: dict[str, str]
    builtins_name: str
    guards: list[Any] = field(default_factory=list)  # at the attempt's end: 2.15 clears them when it was discarded


@dataclass
class Left:
    """What is kept of a frame that stays as it is: what that was decided by."""

    reason: str
    locals: str  # digest of names and types
    tensors: bool
    inlined: list[tuple[list[Any], str]]
    imports: dict[str, str]
    builtins_names: list[str]
    guards: list[package_guards.Kept]
    seen: Seen
    global_state: str


@dataclass
class Traced:
    """What one call of Dynamo's converter made."""

    body: Body | None = None
    names: dict[str, str] = field(default_factory=dict)  # made up by this process -> what stands for them
    locals: dict[str, str] = field(default_factory=dict)  # what a look tells of those with guards
    about: About = field(default_factory=About)
    problem: NotPortable | None = None
    asked: dict[str, Any] = field(default_factory=dict)
    # Dynamo begins anew where it finds that it must break the graph.
    attempts: list[Attempt] = field(default_factory=list)
    looked_for: list[tuple[Any, str]] = field(default_factory=list)  # source, name of an attribute
    skip: str | None = None  # why the frame runs as it is; None when it was compiled


class Packages(Protocol):
    """Who is asked and told (package/automatic.py)."""

    def find(self, frame: Frame) -> ConvertFrameReturn | None: ...
    def traced(self, frame: Frame, traced: Traced) -> None: ...


_local = threading.local()
_originals: dict[str, Any] = {}
_packages: Packages | None = None


# ---------------------------------------------------------------------- switching on


def install(packages: Packages) -> None:
    """Ask and tell ``packages`` from now on; idempotent."""
    global _packages  # noqa: PLW0603
    _packages = packages
    if _originals:
        return
    missing = [name for name in _NEEDED if not hasattr(convert_frame, name)]
    if missing or not hasattr(convert_frame.CheckFunctionManager, "serialize_guards"):
        raise NotPortable(f"this torch has no {', '.join(missing) or 'serialize_guards'}", code="package-unsupported")
    _originals.update(
        convert=convert_frame.ConvertFrame.__call__,
        convert_assert=convert_frame.ConvertFrameAssert.__call__,
        build_guards=convert_frame.DynamoOutput.build_guards,
        manager=convert_frame.CheckFunctionManager,
    )
    convert_frame.ConvertFrame.__call__ = _routed(_originals["convert"])
    convert_frame.ConvertFrameAssert.__call__ = _routed(_originals["convert_assert"])
    convert_frame.DynamoOutput.build_guards = _recorded(_originals["build_guards"])
    convert_frame.CheckFunctionManager = _Recording
    _originals["output_init"] = output_graph.OutputGraph.__init__
    output_graph.OutputGraph.__init__ = _attempted(output_graph.OutputGraph.__init__)
    _originals["output_cleanup"] = output_graph.OutputGraph.cleanup
    output_graph.OutputGraph.cleanup = _ended(output_graph.OutputGraph.cleanup)
    _originals["hasattr"] = package_seen.wrap(_look_for)
    store_constant = getattr(dynamo_functions, "invoke_and_store_as_constant", None)
    if store_constant is not None:
        _originals["store_constant"] = store_constant
        dynamo_functions.invoke_and_store_as_constant = _noticed(store_constant)


def remove() -> None:
    """Give Dynamo its own methods back; idempotent."""
    if _originals:
        convert_frame.ConvertFrame.__call__ = _originals["convert"]
        convert_frame.ConvertFrameAssert.__call__ = _originals["convert_assert"]
        convert_frame.DynamoOutput.build_guards = _originals["build_guards"]
        convert_frame.CheckFunctionManager = _originals["manager"]
        output_graph.OutputGraph.__init__ = _originals["output_init"]
        output_graph.OutputGraph.cleanup = _originals["output_cleanup"]
        _originals["hasattr"]()
        if "store_constant" in _originals:
            dynamo_functions.invoke_and_store_as_constant = _originals["store_constant"]
        _originals.clear()


_NEEDED = ("ConvertFrame", "ConvertFrameAssert", "DynamoOutput", "CheckFunctionManager", "has_tensor_in_frame",
           "get_compile_id", "input_codes", "output_codes", "orig_code_map")  # fmt: skip


def _attempted(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        traced = getattr(_local, "tracing", None)
        if traced is not None:
            context = self.tracing_context
            traced.attempts.append(
                Attempt(context.traced_code, self.import_sources, self.name_of_builtins_dict_key_in_fglobals)
            )  # fmt: skip

    return init


def _look_for(source: Any, name: str) -> None:
    traced = getattr(_local, "tracing", None)
    if traced is not None:
        traced.looked_for.append((source, name))


def _ended(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def cleanup(self: Any) -> None:
        traced = getattr(_local, "tracing", None)
        if traced is not None and traced.attempts:
            traced.attempts[-1].guards = list(self.guards)
        original(self)

    return cleanup


def sources(traced: Traced, root: types.CodeType, places: Places) -> list[tuple[list[Any], str]]:
    """Where all code is found that any attempt met: it decided where the graph breaks, and what is left alone.

    What no name leads to is left out here; ``_record`` refuses it where it is part of the result.
    """
    own = code_digest(root)
    codes = {code_digest(code): code for attempt in traced.attempts for code in attempt.code}
    found = [(places.place(code), digest) for digest, code in codes.items() if digest != own]
    return sorted((place, digest) for place, digest in found if place is not None)


def _noticed(original: Callable[..., Any]) -> Callable[..., Any]:
    """What a function under assume_constant_result gave is in the trace without a guard: it is asked again later."""

    @functools.wraps(original)
    def invoke_and_store_as_constant(tx: Any, fn: Any, name: str, args: Any, kwargs: Any) -> Any:
        traced = getattr(_local, "tracing", None)
        if traced is None:
            return original(tx, fn, name, args, kwargs)
        answered: list[Any] = []

        @functools.wraps(fn)
        def asked(*values: Any, **named: Any) -> Any:
            answered[:] = [values, named, fn(*values, **named)]
            return answered[2]

        found = original(tx, asked, name, args, kwargs)
        try:
            here = _found(fn.__module__, fn.__qualname__)
            if (
                not answered
                or not callable(here)
                or code_digest(fn.__code__) not in codes_at([fn.__module__, fn.__qualname__.split(".")])
            ):
                raise NotPortable("no name leads to it")
            values, named, result = answered
            shown = Descriptions().value([list(values), named, result])
            if not all(_is_plain(item) for item in (*values, *named.values())):
                raise NotPortable("its arguments are objects")
            traced.asked[repr((fn.__module__, fn.__qualname__, shown))] = (
                fn.__module__, fn.__qualname__, values, named, shown[1][2],
            )  # fmt: skip
        except NotPortable as reason:
            traced.problem = NotPortable(
                f"{name} is assumed to give a constant: {reason}", code="package-assumed-constant"
            )
        return found

    return invoke_and_store_as_constant


def _is_plain(value: Any) -> bool:
    return type(value) in (bool, int, float, str, bytes, type(None))


def _found(module: str, qualname: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def _routed(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def convert(
        self: Any, frame: Any, cache_entry: Any, hooks: Any, frame_state: Any, *args: Any, **kwargs: Any
    ) -> Any:
        def trace() -> Any:
            return original(self, frame, cache_entry, hooks, frame_state, *args, **kwargs)

        if _packages is None or getattr(_local, "tracing", None) is not None:
            return trace()  # ConvertFrame calls ConvertFrameAssert
        known = _frame(self, frame, hooks)
        if known is None:
            return trace()
        problem = package_guards.mode_problem()
        if problem is None:
            _local.hooks, _local.state = hooks, frame_state
            try:
                found = _packages.find(known)
            finally:
                _local.hooks = _local.state = None
            if found is not None:
                return found
        _local.tracing = traced = Traced(problem=problem)
        try:
            result = trace()
        finally:
            _local.tracing = None
        if result.guarded_code is None:
            strategy = result.frame_exec_strategy
            if result.apply_to_code and (strategy.cur_action, strategy.recursive_action) == _SKIPS:
                traced.skip = getattr(result, "skip_reason", None) or "skipped"
                _packages.traced(known, traced)
        elif traced.body is not None or traced.problem is not None:
            if traced.body is not None:
                traced.body.code = result.guarded_code.code
                _check_globals(traced, known)
            _packages.traced(known, traced)
        return result

    return convert


def _frame(converter: Any, frame: Any, hooks: Any) -> Frame | None:
    """None for what no package is about: other backends, export, filtered guards."""
    inner = getattr(converter, "_inner_convert", converter)
    if getattr(inner, "_export", True) or getattr(inner, "_package", None) is not None:
        return None
    if hooks is not None and (hooks.guard_filter_fn is not None or hooks.guard_export_fn is not None):
        return None
    owner = _innermost(converter)
    options = _options(owner)
    code = frame.f_code
    if options is None or code in convert_frame.output_codes:
        return None
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return None  # ranks and groups are constants of a trace
    caller = sys._getframe(1)
    while caller is not None and caller.f_code.co_filename in (convert_frame.__file__, __file__):
        caller = caller.f_back  # type: ignore[assignment]
    if caller is not None and caller.f_code is torch._dynamo.decorators._nonrecursive_disable_wrapper_code:
        return None
    if len(torch._C._dynamo.eval_frame._debug_get_cache_entry_list(code)) >= torch._dynamo.config.recompile_limit:
        return None  # Dynamo gives up on it
    return Frame(code, frame.f_locals, frame.f_globals, bool(inner._one_graph), options, owner)


def _innermost(converter: Any) -> Any:
    backend = converter
    while hasattr(backend, "_torchdynamo_orig_backend"):
        backend = backend._torchdynamo_orig_backend
    return backend


def _options(backend: Any) -> dict[str, Any] | None:
    if type(backend) is torch._TorchCompileInductorWrapper:
        return dict(backend.config)
    if type(backend) is torch._TorchCompileWrapper and backend.compiler_name == "precompiled":
        return route.inductor_options(backend.kwargs.get("mode"), backend.kwargs.get("options"))
    return None


def entries_of(owner: Any) -> list[tuple[str, str]]:
    """(function, name) of the entries that were made or used for one torch.compile()."""
    if not hasattr(owner, _ENTRIES):
        setattr(owner, _ENTRIES, [])
    found: list[tuple[str, str]] = getattr(owner, _ENTRIES)
    return found


def compiled(function: Any) -> tuple[Any, types.FunctionType]:
    """What torch.compile() was given, as a function, and its owner; raises NotPortable for anything else."""
    context = vars(function).get("dynamo_ctx") if isinstance(function, torch.nn.Module) else None
    if isinstance(function, torch.nn.Module):
        target = type(vars(function)["_modules"]["_orig_mod"]).forward if context is not None else None
    else:
        cells = getattr(function, "__closure__", None) or ()
        contexts = [cell.cell_contents for cell in cells if hasattr(cell.cell_contents, "callback")]
        context = contexts[0] if contexts else None
        target = getattr(function, "_torchdynamo_orig_callable", None)
    if isinstance(target, torch.nn.Module):
        target = type(target).forward
    target = getattr(target, "__func__", target)
    if isinstance(target, functools.partial):
        target = target.func
    if context is None or not isinstance(target, types.FunctionType):
        raise NotPortable(
            "this is not what torch.compile() gives for a function or a module", code="package-not-compiled"
        )
    owner = _innermost(context.callback)
    if _options(owner) is None:
        raise NotPortable("it is compiled with another backend than inductor", code="package-not-compiled")
    return owner, target


def trace_configuration() -> str:
    """Digest of Dynamo's own settings: they decide what is traced, and how. Raises NotPortable for code among them."""
    config = torch._dynamo.config
    values = config.save_config_portable(ignore_private_configs=False)
    described = Descriptions()
    shown = [[name, described.value(value)] for name, value in sorted(values.items()) if name not in _IRRELEVANT]
    # Left out of save_config_portable; what they name is treated otherwise by a trace.
    for name in ("constant_functions", "skipfiles_inline_module_allowlist"):
        shown.append([name, sorted(repr(described.value(item)) for item in getattr(config, name, ()))])
    # What users added to: torch.compiler.allow_in_graph, disallow_in_graph, ... have no other trace than these.
    for name in ("_allowed_callable_ids", "_disallowed_callable_ids", "_nonstrict_trace_callable_ids"):
        ids = getattr(torch._dynamo.trace_rules, name, None)
        shown.append([name, len(ids()) if ids is not None else 0])
    # Whether a graph break raises (torch._dynamo.error_on_graph_break), where it is not in the configuration.
    breaks = getattr(torch._dynamo.utils, "_get_error_on_graph_break", lambda: None)()
    stance = getattr(getattr(torch._dynamo.eval_frame, "_stance", None), "stance", "")
    return hashlib.sha256(repr((shown, breaks, str(stance))).encode()).hexdigest()


# Where files are, what is logged, and after how many recompiles Dynamo gives up.
_IRRELEVANT = frozenset(
    {"base_dir", "debug_dir_root", "log_file_name", "verbose", "repro_after", "repro_level", "_save_config_ignore",
     "recompile_limit", "accumulated_recompile_limit", "cache_size_limit", "accumulated_cache_size_limit",
     "fail_on_recompile_limit_hit", "log_compilation_metrics", "report_guard_failures", "run_gc_after_compile"}
)  # fmt: skip


# ---------------------------------------------------------------------- recording


def _recorded(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def build_guards(self: Any, code: Any, hooks: Any = None, save: bool = False, *args: Any, **kwargs: Any) -> Any:
        traced = getattr(_local, "tracing", None)
        if traced is None or save:
            return original(self, code, hooks, save, *args, **kwargs)
        _local.saving = True
        try:
            return original(self, code, hooks, True, *args, **kwargs)
        finally:
            _local.saving = False

    return build_guards


class _Recording(convert_frame.CheckFunctionManager):  # type: ignore[misc, unused-ignore]
    def serialize_guards(self, builder: Any, sorted_guards: Any, output_graph: Any, *rest: Any, **named: Any) -> bytes:
        if not getattr(_local, "saving", False):
            return super().serialize_guards(builder, sorted_guards, output_graph, *rest, **named)  # type: ignore[no-any-return, unused-ignore]
        traced = _local.tracing
        if traced.problem is not None:
            return b""
        try:
            _record(traced, builder, sorted_guards, output_graph, self.shape_code_parts)
        except NotPortable as reason:
            traced.problem = reason
        except Exception as error:  # noqa: BLE001 - a trace that went well must not fail on our account
            traced.problem = NotPortable(f"{type(error).__name__}: {error}", code="package-internal-error")
        return b""


def _record(traced: Traced, builder: Any, guards: Any, output: Any, shapes: Any) -> None:
    described, places = Descriptions(), Places()
    graphs: list[Graph] = []
    installed: list[tuple[str, str, Any]] = []
    for name in sorted(output.installed_globals):
        kind, what = _installed(name, output.global_scope[name], output.global_scope, graphs)
        traced.names[name] = f"{kind.replace(' ', '_')}{len(traced.names)}"
        installed.append((traced.names[name], kind, what))
    kept = package_guards.capture(builder, guards, output, shapes, described)
    inlined = sources(traced, builder.f_code, places)
    known = {digest for _place, digest in inlined}
    codes = {code_digest(code): code for code in output.tracing_context.traced_code}
    root = code_digest(builder.f_code)
    for digest, code in codes.items():
        if digest == root:
            continue
        package_seen.check_code(code)
        if digest not in known and digest not in described.covered:
            raise NotPortable(
                f"{getattr(code, 'co_qualname', code.co_name)} was inlined, and no name leads to its code",
                code="package-inlined",
            )
    package_seen.check_code(builder.f_code)
    local = output.local_scope
    traced.locals = {name: look(local[name]) for name in package_guards.guarded_locals(guards) if name in local}
    seen = package_seen.seen(
        traced.looked_for, codes.values(), builder.f_code, output.global_scope, places, builder, described
    )
    traced.about = package_guards.about(guards, kept, inlined, seen.told())
    traced.body = Body(kept, seen, builder.f_code, dict(output.import_sources), installed, inlined, graphs,
                       [traced.asked[name] for name in sorted(traced.asked)])  # fmt: skip


def _loaded(code: types.CodeType) -> set[str]:
    """Names that code reads from its globals, with the functions inside of it."""
    return {name for inner in codes_within(code) for name in package_seen.globals_read(inner)}


def _check_globals(traced: Traced, frame: Frame) -> None:
    """Refuse bytecode that reads a global which neither the program has nor we can put there (``alpha_1``)."""
    assert traced.body is not None
    written = {name for attempt in traced.attempts for code in attempt.code for name in code.co_names}
    known = {*traced.names, *traced.body.imports, *written, *frame.code.co_names, *vars(builtins)}
    unknown = _loaded(traced.body.code) - known
    if unknown:
        traced.body = None
        traced.problem = NotPortable(f"Dynamo put {sorted(unknown)[0]} into the globals", code="package-global")


def _installed(name: str, value: Any, scope: dict[str, Any], graphs: list[Graph]) -> tuple[str, Any]:
    """What Dynamo put into the frame's globals, as something that can be put there again."""
    if value is vars(builtins):
        return "builtins", None
    graph = getattr(value, MARK, None)
    if isinstance(graph, Graph):
        graphs.append(graph)
        return "graph", len(graphs) - 1
    if isinstance(value, types.FunctionType) and value.__code__.co_name.startswith(_RESUME):
        return "resume", value.__code__
    if isinstance(value, types.FunctionType) and value.__name__ == "_make_fn":
        code = next((cell.cell_contents for cell in value.__closure__ or ()
                     if isinstance(cell.cell_contents, types.CodeType)), None)  # fmt: skip
        if code is not None:
            return "resume", code
    if isinstance(value, types.CodeType) and value.co_name.startswith(_RESUME):
        return "resume code", value  # 2.11: the bytecode makes the function itself
    if isinstance(value, types.ModuleType):
        return "module", value.__name__
    if value is scope:
        return "scope", None
    if name.startswith("__compiled_fn"):
        raise NotPortable("a graph of it has no artifact: it was compiled in this process", code="package-graph")
    raise NotPortable(f"Dynamo put a {type(value).__qualname__} into the globals ({name})", code="package-global")


# ---------------------------------------------------------------------- using


def left(frame: Frame, traced: Traced) -> Left:
    """What a frame that stays as it is depends on: a value may have decided it. Raises NotPortable."""
    if not all(attempt.guards for attempt in traced.attempts):  # there are always some, on the global state
        raise NotPortable("this torch does not say by what a frame was left alone", code="package-unsupported")
    imports: dict[str, str] = {}
    guards: dict[tuple[str, str], Any] = {}
    for attempt in traced.attempts:
        imports |= attempt.imports
        guards |= {(guard.name, guard.create_fn_name()): guard for guard in attempt.guards}
    names = sorted({attempt.builtins_name for attempt in traced.attempts})
    traced.names = {name: f"builtins{number}" for number, name in enumerate(names)}
    reader = package_guards.Reader(frame.local, _scope(frame, imports, names))
    described, places = Descriptions(), Places()
    facts = package_guards.facts(sorted(guards.values()), reader, described)
    codes = [code for attempt in traced.attempts for code in attempt.code]
    for code in (frame.code, *codes):
        package_seen.check_code(code)
    return Left(
        reason=traced.skip or "",
        locals=locals_digest(frame.kinds),
        tensors=has_tensors(frame),
        inlined=sources(traced, frame.code, places),
        imports=imports,
        builtins_names=[traced.names[name] for name in names],
        guards=facts,
        seen=package_seen.seen(traced.looked_for, codes, frame.code, frame.scope, places, reader, described),
        global_state=package_guards.global_state(),
    )


def skipped(frame: Frame, kept: Left, name: Callable[[str], str]) -> ConvertFrameReturn:
    """What Dynamo answers for a frame that stays as it is; raises Mismatch where it may not."""
    if (changed := changed_source(kept.inlined)) is not None:
        raise Mismatch(f"the source of {changed} has changed")
    if kept.locals != locals_digest(frame.kinds) or kept.tensors != has_tensors(frame):
        raise Mismatch("it is called with other types than when it was left alone")
    package_guards.check_global_state(kept.global_state)
    scope = _scope(frame, kept.imports, [name(placeholder) for placeholder in kept.builtins_names])
    reader, described = package_guards.Reader(frame.local, scope), Descriptions()
    package_guards.compare(kept.guards, reader, described)
    package_seen.compare(kept.seen, frame.scope, reader, described, check_source=True)
    with contextlib.suppress(Exception):
        convert_frame.input_codes.add(frame.code)
    result = ConvertFrameReturn()
    if hasattr(result, "skip_reason"):
        result.skip_reason = kept.reason
    return result


def _scope(frame: Frame, imports: dict[str, str], builtins_names: Iterable[str]) -> dict[str, Any]:
    """The frame's globals, with what Dynamo puts there for its sources."""
    made = {alias: importlib.import_module(module) for alias, module in imports.items()}
    return {**frame.scope, **made, **dict.fromkeys(builtins_names, vars(builtins))}


def modes_of_a_compile(uses_cpu: bool) -> dict[str, Any]:
    """The modes that a backend would be called in, were the frame traced: Dynamo makes no_grad of inference mode."""
    with maybe_disable_inference_mode():
        return modes.capture(uses_cpu)


def meaning(body: Body, about: About) -> str:
    """Digest of what an entry says and does, without files and lines; graphs by their keys."""
    installed = [code_digest(what) if isinstance(what, types.CodeType) else what for _, _, what in body.installed]
    asked = [repr(item) for item in body.asked]
    shown = [code_digest(body.code), installed, [graph.key for graph in body.graphs], body.imports, asked]
    return hashlib.sha256(repr(shown).encode() + about.without_places().to_bytes()).hexdigest()


def passing() -> bool:
    """Whether frames may be left as they are for a reason that another run does not have."""
    return bool(torch._dynamo.config.suppress_errors or os.environ.get("TORCHDYNAMO_DEBUG_FUNCTION"))


def has_tensors(frame: Frame) -> bool:
    """Dynamo's own look at a frame before it traces it."""
    proxy = types.SimpleNamespace(
        f_code=frame.code, f_locals=frame.local, f_globals=frame.scope, f_builtins=frame.scope.get("__builtins__")
    )
    return bool(convert_frame.has_tensor_in_frame(proxy))


def passed_over(locals_: dict[str, str], frame: Frame) -> str | None:
    """Why an entry cannot be for this frame, by a look at its locals; None when it may be."""
    for name, before in locals_.items():
        here = look(frame.local[name]) if name in frame.local else "absent"
        if here != before:
            return f"L[{name!r}]: {here} here, {before} when it was traced"
    return None


def changed_source(inlined: Iterable[tuple[list[Any], str]]) -> str | None:
    """What a trace met and has another source by now; None when nothing has."""
    for place, digest in inlined:
        if digest not in codes_at(place):
            return f"{place[0]}.{'.'.join(place[1])}"
    return None


def usable(
    body: Body, frame: Frame, described: Descriptions, name: Callable[[str], str], *, check_source: bool = True
) -> Rebuilder:
    """Check all that an entry took for granted against the live frame; raises Mismatch with the first difference."""
    if check_source and (changed := changed_source(body.inlined)) is not None:
        raise Mismatch(f"the source of {changed} has changed")
    for module, qualname, values, named, before in body.asked:
        importlib.import_module(module)
        now = Descriptions().value(_found(module, qualname)(*values, **named))
        if now != before:
            raise Mismatch(f"{module}.{qualname} gives {now}, and gave {before} when it was traced")
    with _aliases(body, frame.scope, name) as installed:
        rebuilder = Rebuilder(body.guards, frame.code, frame.local, frame.scope)
        rebuilder.verify(described, check_source=check_source)
        package_seen.compare(body.seen, frame.scope, rebuilder.reader, described, check_source=check_source)
        installed.clear()  # they stay
    return rebuilder


@contextlib.contextmanager
def _aliases(body: Body, scope: dict[str, Any], name: Callable[[str], str]) -> Iterator[list[str]]:
    """The modules and the builtins under the names that the sources use; taken away again when it comes to nothing."""
    wanted: dict[str, Any] = {}
    for alias, module in body.imports.items():
        wanted[alias] = importlib.import_module(module)
    for placeholder, kind, what in body.installed:
        if kind == "builtins":
            found = scope["__builtins__"]
            wanted[name(placeholder)] = found if isinstance(found, dict) else vars(found)
        elif kind == "module":
            wanted[name(placeholder)] = importlib.import_module(what)
        elif kind == "scope":
            wanted[name(placeholder)] = scope
    added: list[str] = []
    try:
        for alias, value in wanted.items():
            if alias not in scope:
                scope[alias] = value
                added.append(alias)
            elif scope[alias] is not value:
                raise Mismatch(f"the global {alias} is something else here")
        yield added
    finally:
        for alias in added:
            scope.pop(alias, None)


def rebuilt(
    frame: Frame, rebuilder: Rebuilder
) -> Callable[[list[Callable[..., Any]], Body, Callable[[str], str]], Any]:
    """Build the guards; what comes back gives Dynamo the entry, once the callables of its graphs are there.

    Raises Mismatch when the guards do not accept the frame.
    """
    hooks = _local.hooks
    compile_id = convert_frame.get_compile_id(_local.state)
    with compile_context(CompileContext(compile_id)):
        manager = rebuilder.build(hooks.guard_fail_fn if hooks else None)

    def install(functions: list[Callable[..., Any]], body: Body, name: Callable[[str], str]) -> ConvertFrameReturn:
        ours = {name(placeholder) for placeholder, _kind, _what in body.installed}
        absent = _loaded(body.code) - ours - frame.scope.keys() - vars(builtins).keys()
        if absent:
            raise Mismatch(f"the bytecode needs the global {sorted(absent)[0]}, which is not here")
        cleanups = []
        for placeholder, kind, what in body.installed:
            alias = name(placeholder)
            if kind == "graph":
                value: Any = torch._dynamo.disable(functions[what], reason="do not trace Dynamo-compiled graph")
                cleanups.append(CleanupHook.create(frame.scope, alias, value))
            elif kind == "resume":
                cleanups.append(CleanupHook.create(frame.scope, alias, _resume(what, frame.scope, alias)))
            elif kind == "resume code":
                cleanups.append(CleanupHook.create(frame.scope, alias, what))
            else:  # put there for the guards already
                cleanups.append(CleanupHook.create(frame.scope, alias, frame.scope.pop(alias)))
        code = body.code
        convert_frame.input_codes.add(frame.code)
        convert_frame.output_codes.add(code)
        convert_frame.orig_code_map[code] = frame.code
        CleanupManager.instance[code] = cleanups
        rebuilder.mark_static()
        return wrap_guarded_code(GuardedCode(code, manager, compile_id, f"Torch-Compiled Region: {compile_id}"))

    return install


def _resume(code: types.CodeType, scope: dict[str, Any], name: str) -> Callable[..., Any]:
    """As OutputGraph.install_resume_function_global makes it."""
    if not code.co_freevars:
        return types.FunctionType(code, scope, name)

    # Called with the closure; in C, so that no frame of ours turns up at Dynamo's door.
    return functools.partial(types.FunctionType, code, scope, name, None)
