"""Hooks into Dynamo at frames for which Dynamo has no code that fits.

The hook looks up a package for the frame. If no package fits, Dynamo traces the frame, and the hook records the trace.

Dynamo calls ``ConvertFrame`` (or, with fullgraph=True, ``ConvertFrameAssert``) for a frame whose guards all failed.
This file replaces ``__call__`` of both classes, so the hook runs before Dynamo traces or counts the frame.

Private names: torch._dynamo.convert_frame.{ConvertFrame._inner_convert, ConvertFrameAssert.{_torchdynamo_orig_backend,
_one_graph, _export, _package}, CheckFunctionManager.serialize_guards, DynamoOutput, has_tensor_in_frame,
get_compile_id, input_codes, output_codes, orig_code_map}, torch._dynamo.types.{ConvertFrameReturn.skip_reason (2.13,
2.15), ConvertFrameReturn, FrameAction}, torch._dynamo.config.recompile_limit,
torch._dynamo.decorators._nonrecursive_disable_wrapper_code,
torch._C._dynamo.eval_frame._debug_get_cache_entry_list. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import sys
import types
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch._dynamo.config
import torch._dynamo.decorators
from torch._dynamo import convert_frame
from torch._dynamo.types import ConvertFrameReturn, FrameAction

from precompiled.core import interruptions
from precompiled.packages.describe.errors import NotPortable
from precompiled.packages.dynamo import dynamo_state, installing, trace_errors, trace_recording
from precompiled.packages.dynamo.frame_entry import Frame, Traced
from precompiled.torch_internals.client import compiled_functions, inductor_backend
from precompiled.torch_internals.patches import Patches

log = logging.getLogger("precompiled.package")

_ENTRIES = "_precompiled_entries"
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_SKIPS = (FrameAction.SKIP, FrameAction.DEFAULT)
_NEEDED = tuple(
    """
    CheckFunctionManager ConvertFrame ConvertFrameAssert DynamoOutput get_compile_id has_tensor_in_frame input_codes
    orig_code_map output_codes
    """.split()
)


class FrameHandler(Protocol):
    """The methods that the patched Dynamo calls. packages/automatic.py implements them."""

    def find(self, frame: Frame) -> ConvertFrameReturn | None: ...
    def ended(self) -> None: ...
    def traced(self, frame: Frame, traced: Traced) -> None: ...
    def raised(self, frame: Frame, problem: str, state: str) -> None: ...
    def failed(self, error: BaseException) -> None: ...


_patches = Patches()
_packages: FrameHandler | None = None


def install(packages: FrameHandler) -> None:
    """Call ``packages`` at each frame from now on. Idempotent. Raises NotPortable if this torch lacks a name."""
    global _packages  # noqa: PLW0603
    _packages = packages
    if _patches:
        return
    missing = [name for name in _NEEDED if not hasattr(convert_frame, name)]
    if missing or not hasattr(convert_frame.CheckFunctionManager, "serialize_guards"):
        raise NotPortable(f"this torch has no {', '.join(missing) or 'serialize_guards'}", code="package-unsupported")
    try:
        for converter in (convert_frame.ConvertFrame, convert_frame.ConvertFrameAssert):
            _patches.replace(converter, "__call__", _routed)
        trace_recording.install()
    except BaseException:  # with only some of the patches, recordings would be wrong
        _packages = None
        remove()
        raise


def remove() -> None:
    """Restore Dynamo's own methods. Idempotent."""
    trace_recording.remove()
    _patches.undo()


def _routed(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def convert(
        self: object,
        frame: object,
        cache_entry: object,
        hooks: object,
        frame_state: object,
        *args: object,
        **kwargs: object,
    ) -> object:
        def trace() -> object:
            return original(self, frame, cache_entry, hooks, frame_state, *args, **kwargs)

        if _packages is None:
            return trace()
        if trace_recording.is_tracing():  # nested: ConvertFrame calls ConvertFrameAssert
            try:
                return trace()
            except Exception as error:
                if trace_errors.ends_trace(error):
                    trace_recording.note_error(trace_errors.described(error))
                raise
        looked = _contained(_looked, self, frame, hooks, frame_state)
        if looked is None:
            return trace()
        known, problem, traceable = looked
        if not traceable:
            # Most frames have no tensors (reads of a configuration, for example). Dynamo skips such frames too.
            return installing.left_alone(known, "no tensor-related objects found in frame")
        try:
            found = _contained(_packages.find, known) if problem is None else None
            if found is not None:
                return found
            with trace_recording.tracing(problem) as traced:
                try:
                    result = trace()
                except BaseException as error:
                    described, state = trace_errors.described(error), trace_errors.state_of(error)
                    _contained(_packages.raised, known, described, state)
                    raise
        finally:
            _contained(_packages.ended)
        _contained(_tell, known, traced, result)
        return result

    return convert


def _looked(
    converter: object, frame: object, hooks: object, state: object
) -> tuple[Frame, NotPortable | None, bool] | None:
    """Return the frame, the reason why its trace cannot be kept (or None), and whether Dynamo traces it.

    Dynamo traces frames with tensors, and generators. Return None if packages do not apply.
    """
    known, problem = _frame(converter, frame, hooks, state), dynamo_state.mode_problem()
    if known is None:
        return None
    return known, problem, bool(known.code.co_flags & _GENERATORS) or known.has_tensors()


def _tell(frame: Frame, traced: Traced, result: ConvertFrameReturn) -> None:
    """Pass the result of a trace to the packages."""
    assert _packages is not None
    traced.result = result
    if result.guarded_code is None and traced.error:  # torch._dynamo.config.suppress_errors
        _packages.raised(frame, f"{traced.error}; {trace_errors.UNCOMPILED}", "raised")
        return
    if result.guarded_code is None:
        strategy = result.frame_exec_strategy
        if result.apply_to_code and (strategy.cur_action, strategy.recursive_action) == _SKIPS:
            traced.skip = getattr(result, "skip_reason", None) or "skipped"
            _packages.traced(frame, traced)
    elif traced.body is not None or traced.problem is not None:
        if traced.body is not None:
            traced.body.code = result.guarded_code.code
        _packages.traced(frame, traced)


def _contained(step: Callable[..., object], *arguments: object) -> Any:
    """Run a step of packages.

    Returns None if the step fails, because a bug in packages must not end the user's call.
    """
    try:
        return step(*arguments)
    except BaseException as error:  # noqa: BLE001 - the user's objects may raise anything
        interruptions.pass_on(error)
        _note_failure(error)
        return None


def _note_failure(error: BaseException) -> None:
    log.warning("packages: the lookup failed, so Dynamo traces the frame", exc_info=error)
    if _packages is not None:
        with contextlib.suppress(Exception):
            _packages.failed(error)


def _frame(converter: Any, frame: Any, hooks: Any, state: object) -> Frame | None:
    """The frame, or None if packages do not apply.

    Packages apply only to the backend "inductor". They do not apply to exports, calls with a hook for guards, Dynamo's
    own code, or code at Dynamo's limit of recompiles.
    """
    inner = getattr(converter, "_inner_convert", converter)
    if getattr(inner, "_export", True) or getattr(inner, "_package", None) is not None:
        return None
    if hooks is not None and (hooks.guard_filter_fn is not None or hooks.guard_export_fn is not None):
        return None
    owner = compiled_functions.innermost(converter)
    options = inductor_backend.options_of_backend(owner)
    code = frame.f_code
    if options is None or code in convert_frame.output_codes:
        return None
    caller = sys._getframe(1)
    while caller is not None and caller.f_code.co_filename in (convert_frame.__file__, __file__):
        caller = caller.f_back  # type: ignore[assignment]
    if caller is not None and caller.f_code is torch._dynamo.decorators._nonrecursive_disable_wrapper_code:
        return None
    known = len(torch._C._dynamo.eval_frame._debug_get_cache_entry_list(code))
    if known >= torch._dynamo.config.recompile_limit:
        return None  # Dynamo no longer compiles this code
    return Frame(
        code, frame.f_locals, frame.f_globals, bool(inner._one_graph), options, owner, hooks, state, first=known == 0
    )


def entries_of(owner: object) -> list[tuple[str, str]]:
    """Return the list of the entries that were recorded or used for one call of torch.compile().

    Callers change the list.

    An entry is given by its function and file name. ``owner`` is the backend object that torch.compile() created.
    """
    if not hasattr(owner, _ENTRIES):
        setattr(owner, _ENTRIES, [])
    found: list[tuple[str, str]] = getattr(owner, _ENTRIES)
    return found


def unwrap_compiled(function: object) -> tuple[object, types.FunctionType]:
    """For a result of torch.compile(), return its owner and its function. Raises NotPortable for other objects."""
    context = compiled_functions.context_of(function)
    if isinstance(function, torch.nn.Module):
        original = vars(function)["_modules"].get("_orig_mod")
        target: Any = type(original).forward if original is not None else None
    else:
        target = getattr(function, "_torchdynamo_orig_callable", None)
    if isinstance(target, torch.nn.Module):
        target = type(target).forward
    target = getattr(target, "__func__", target)
    if isinstance(target, functools.partial):
        target = target.func
    if context is None or not isinstance(target, types.FunctionType):
        raise NotPortable(
            "the argument is not what torch.compile() returns for a function or module", code="package-not-compiled"
        )
    owner = compiled_functions.backend_of(context)
    if inductor_backend.options_of_backend(owner) is None:
        raise NotPortable("its backend is not inductor", code="package-not-compiled")
    return owner, target
