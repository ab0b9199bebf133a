"""Prepares the live optimizer before a stored entry is used, as Dynamo does while it traces a compiled ``step``.

Dynamo does not trace how an optimizer creates its state (torch/_dynamo/variables/optimizer.py). During the trace,
Dynamo calls ``_init_group`` on the program's own optimizer, once for each group. Then Dynamo makes guards on the state,
and marks parameters and state as static. The marked tensors become attributes of the graph, each with a guard on its
identity. torch_internals/client/graph_attributes.py turns them into inputs.

In a later process, no state exists before the first step. So this file records Dynamo's calls of ``_init_group``, and
repeats them on the live optimizer before the optimizer's state is compared. If the entry does not fit, this file undoes
the effects.

This file calls only torch's own ``_init_group``, which reads parameters, gradients, the group and the state. The
sizes of gradients have no guards, so guard_facts.py describes them.

Private names: torch._dynamo.variables.optimizer.OptimizerVariable.{get_python_args, value, source},
torch._dynamo.variables.optimizer.OptimizerVariable._safe_to_set_capturable (2.15),
torch._dynamo.source.OptimizerSource, torch.optim.Optimizer._init_group, torch._dynamo.mark_static_address,
torch.utils._pytree.tree_leaves, torch.Tensor._dynamo_static_input_type. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch._dynamo.source import OptimizerSource
from torch._dynamo.variables.optimizer import OptimizerVariable
from torch.utils import _pytree as pytree

from precompiled.core.files import is_torchs
from precompiled.packages.describe.errors import Mismatch, NotPortable
from precompiled.packages.dynamo.trace_log import Call, TraceLog

STATIC, GUARDED = "_dynamo_static_input_type", "guarded"
_ABSENT = object()
# Torch 2.15 sets ``capturable`` only while it calls ``_init_group``.
_FOR_A_CALL = hasattr(OptimizerVariable, "_safe_to_set_capturable")

# An optimizer's source and the calls of its ``_init_group``.
Prepared = tuple[Any, tuple[Call, ...]]


def replacements() -> Iterator[tuple[object, str, Callable[..., object]]]:
    """For each function of Dynamo that needs a wrapper (trace_patches), yield owner, name, and the wrapper's maker."""
    yield OptimizerVariable, "get_python_args", _initialised


def _initialised(original: Callable[..., Any], now: Callable[[], TraceLog | None]) -> Callable[..., object]:
    """Record the arguments of ``_init_group``, which Dynamo computes (with ``get_python_args``) just before the
    call.
    """

    def get_python_args(self: Any, *args: object, **kwargs: object) -> object:
        values, named = original(self, *args, **kwargs)  # raises if Dynamo will trace the call
        noted = now()
        if noted is not None:
            if (problem := _not_torchs(self.value)) is not None:
                noted.problem = NotPortable(problem)
            groups = [id(group) for group in self.value.param_groups]
            call = [_argument(value, groups) for value in (*values, *named.values())]
            calls = noted.initialised.setdefault(self.source.name, [])
            if (made := (call[: len(values)], dict(zip(named, call[len(values) :], strict=True)))) not in calls:
                calls.append(made)
        return values, named

    return get_python_args


def _argument(value: object, groups: list[int]) -> tuple[str, object]:
    if id(value) in groups:
        return "group", groups.index(id(value))
    return ("list", None) if value == [] else ("value", value)


def _not_torchs(optimizer: object) -> str | None:
    """Return the reason why an entry must not call ``_init_group``, or None.

    A method that is not torch's own may read anything.
    """
    owner = next((kind for kind in type(optimizer).__mro__ if "_init_group" in vars(kind)), None)
    function = inspect.unwrap(vars(owner)["_init_group"]) if owner is not None else None
    code = getattr(function, "__code__", None)
    if "_init_group" not in vars(optimizer) and code is not None and is_torchs(code.co_filename):
        return None
    return f"{type(optimizer).__qualname__}._init_group is not torch's, and Dynamo does not trace it"


# ---------------------------------------------------------------------- recording


def prepared_optimizers(guards: Iterable[Any], noted: TraceLog) -> tuple[Prepared, ...]:
    """The optimizers whose groups a trace read, with the calls of ``_init_group``."""
    found = {}
    for guard in guards:
        source = guard.originating_source
        while source is not None:
            base = getattr(source, "base", None)
            if getattr(source, "member", None) == "param_groups" and isinstance(base, OptimizerSource):
                found[base.name] = base
            source = base
    return tuple((found[name], tuple(noted.initialised.get(name, ()))) for name in sorted(found))


def sources_of(tensors: Iterable[torch.Tensor], guards: Iterable[Any], reader: Any) -> tuple[object, ...]:
    """The sources of the tensors that a graph holds. Raises NotPortable if a tensor has no guard on its identity."""
    known: dict[int, object] = {}
    for guard in guards:
        if guard.create_fn_name() == "ID_MATCH":
            known.setdefault(id(reader.get(guard)), guard.originating_source)
    try:
        return tuple(known[id(tensor)] for tensor in tensors)
    except KeyError:
        raise NotPortable("a graph contains a tensor without a guard", code="package-graph") from None


# ---------------------------------------------------------------------- using


def make_capturable(optimizers: Iterable[Prepared], value_of: Callable[[Any], Any], undo: contextlib.ExitStack) -> None:
    """Set ``capturable``, as Dynamo does when it reads an optimizer's groups. Callbacks in ``undo`` restore it."""
    if not _FOR_A_CALL:
        for source, _calls in optimizers:
            _capturable(value_of(source), undo)


def _capturable(optimizer: torch.optim.Optimizer, undo: contextlib.ExitStack) -> None:
    """Set ``capturable`` for groups that are on a GPU and have no state, so that the GPU counts their steps."""
    for group in optimizer.param_groups:
        parameters = group["params"]
        if (
            "capturable" in group
            and not any(parameter in optimizer.state for parameter in parameters)
            and all(parameter.is_cuda or parameter.is_xpu for parameter in parameters)
        ):
            undo.callback(group.__setitem__, "capturable", group["capturable"])
            group["capturable"] = True


def prepare(optimizers: Iterable[Prepared], value_of: Callable[[Any], Any], undo: contextlib.ExitStack) -> None:
    """Create state and marks as a trace does. Callbacks in ``undo`` remove them. Raises Mismatch."""
    for source, calls in optimizers:
        optimizer = value_of(source)
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            _mark(parameter, undo)
        if not calls:
            continue
        if (problem := _not_torchs(optimizer)) is not None:
            raise Mismatch(problem)
        undo.callback(_restore, optimizer.state, {key: dict(state) for key, state in optimizer.state.items()})
        for parameter, state in optimizer.state.items():
            if "step" in state and state["step"].is_cpu:
                state["step"] = state["step"].to(parameter.device)
        for values, named in calls:
            argument = functools.partial(_value, optimizer.param_groups)
            more = {name: argument(item) for name, item in named.items()}
            try:
                with contextlib.ExitStack() as after:
                    if _FOR_A_CALL:
                        _capturable(optimizer, after)
                    optimizer._init_group(*map(argument, values), **more)
            except Exception as error:  # ``_init_group`` rejects these gradients, as in a trace
                raise Mismatch(f"{type(optimizer).__qualname__}._init_group raises {error}") from error
        for tensor in pytree.tree_leaves(list(optimizer.state.values())):
            if isinstance(tensor, torch.Tensor):
                _mark(tensor, undo)


def _value(groups: list[Any], argument: tuple[str, Any]) -> object:
    kind, value = argument
    if kind == "group":
        if value >= len(groups):
            raise Mismatch(f"the optimizer has {len(groups)} groups here")
        return groups[value]
    return [] if kind == "list" else value


def _mark(tensor: torch.Tensor, undo: contextlib.ExitStack) -> None:
    before = vars(tensor).get(STATIC, _ABSENT)
    if before != GUARDED:
        undo.callback(_unmark, tensor, before)
        torch._dynamo.mark_static_address(tensor, guard=True)


def _unmark(tensor: torch.Tensor, before: object) -> None:
    if before is _ABSENT:
        delattr(tensor, STATIC)
    else:
        setattr(tensor, STATIC, before)


def _restore(state: Any, before: dict[Any, dict[Any, Any]]) -> None:
    for key in list(state):
        if key not in before:
            del state[key]
        else:
            state[key].clear()
            state[key].update(before[key])


def holding(
    function: Callable[..., object],
    sources: Iterable[object],
    optimizers: Iterable[Prepared],
    value_of: Callable[[Any], Any],
) -> Callable[..., Any]:
    """Wrap a graph's callable. The wrapper adds, as last arguments, the tensors that Dynamo's module holds.

    As in Dynamo (``create_finalizer``), release the tensors once the optimizer is deleted.
    """
    held = [value_of(source) for source in sources]
    if not held:
        return function
    for source, _calls in optimizers:
        weakref.finalize(value_of(source), held.clear)
    return lambda *args: function(*args, *held)
