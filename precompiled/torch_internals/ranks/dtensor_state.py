"""Reads process-wide state of torch that affects a trace of DTensors, and applies it in a worker.

loss_parallel() and implicit_replication() change how DTensor handles an operator, so the key contains them, and the
worker applies them. A worker lacks the program's own rules (register_sharding, other handlers), so such rules are
refused. ExplicitRedistributionContext and compile_on_one_rank are also refused.

Private names: torch.distributed.tensor.DTensor._op_dispatcher.{_custom_op_handlers, _allow_implicit_replication,
sharding_propagator.{op_to_rules, op_strategy_funcs, op_single_dim_strategy_funcs}},
torch.distributed.tensor.parallel.loss.{customized_loss_ops, _enable_custom_loss_ops, _disable_custom_loss_ops},
torch.distributed.tensor._redistribute.{_FORCE_MIN_COST_REDISTRIBUTION_PLAN,
_DISABLE_REDISTRIBUTE_TRANSFORM_OPTIMIZATION}, torch.distributed.tensor._utils.ExplicitRedistributionContext._local,
torch.distributed.config.compile_on_one_rank. Checked on 2.13.0, 2.15.0.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any

import torch

from precompiled.core.errors import Bypass, CompileFailed
from precompiled.core.files import is_really_torchs

_ONE_RANK = "compile_on_one_rank"
_FLAGS = ("_FORCE_MIN_COST_REDISTRIBUTION_PLAN", "_DISABLE_REDISTRIBUTE_TRANSFORM_OPTIMIZATION")

_known_rules: list[object] = []  # the rules of the last check, all of them torch's own


def read() -> dict[str, object]:
    """Return, as plain data, the state that affects graphs with DTensors. Raises Bypass if a worker cannot have this
    state.
    """
    from torch.compiler import config
    from torch.distributed.tensor import DTensor, _redistribute
    from torch.distributed.tensor._utils import ExplicitRedistributionContext
    from torch.distributed.tensor.parallel import loss

    dispatcher = DTensor._op_dispatcher
    _refuse_rules(dispatcher.sharding_propagator)
    if getattr(ExplicitRedistributionContext._local, "_active", None) is not None:
        raise _cannot("ExplicitRedistributionContext is on")
    # Torch 2.15 has the setting in torch.compiler.config, and warns at reads of the old place.
    if getattr(config if hasattr(config, _ONE_RANK) else torch.distributed.config, _ONE_RANK, False):
        raise _cannot("torch.distributed.config.compile_on_one_rank is on")
    return {
        "loss_parallel": set(loss.customized_loss_ops) <= set(dispatcher._custom_op_handlers),
        "handlers": _handlers(dispatcher._custom_op_handlers),
        "implicit_replication": bool(dispatcher._allow_implicit_replication),
        **{name: getattr(_redistribute, name) for name in _FLAGS if hasattr(_redistribute, name)},
    }


def _handlers(found: Mapping[Any, Any]) -> list[list[str]]:
    for op, handler in found.items():
        if not _is_torchs(handler):
            raise _cannot(f"{op} has a handler of the program's own")
    return sorted([str(op), f"{handler.__module__}.{handler.__qualname__}"] for op, handler in found.items())


def _refuse_rules(propagator: Any) -> None:
    tables = (propagator.op_to_rules, propagator.op_strategy_funcs, propagator.op_single_dim_strategy_funcs)
    rules = [rule for table in tables for rule in table.values()]
    if rules == _known_rules:
        return
    for table in tables:
        for op, rule in table.items():
            if not _is_torchs(getattr(rule, "func", rule) if type(rule).__module__.startswith("torch.") else rule):
                raise _cannot(f"{op} has a sharding rule of the program's own")
    _known_rules[:] = rules


def _is_torchs(function: object) -> bool:
    return isinstance(function, FunctionType) and _is_torchs_file(function.__code__.co_filename)


@functools.cache  # about a thousand rules come from a few files
def _is_torchs_file(path: str) -> bool:
    return is_really_torchs(path)


def _cannot(why: str) -> Bypass:
    return Bypass(f"DTensors are traced under a state that no worker has: {why}", code="dtensor-state")


@contextmanager
def applied(state: Mapping[str, Any] | None) -> Iterator[None]:
    """In a worker, apply the state that ``read`` returned, for one compile. None for a graph without DTensors."""
    if state is None:
        yield
        return
    from torch.distributed.tensor import DTensor, _redistribute
    from torch.distributed.tensor.parallel import loss

    dispatcher = DTensor._op_dispatcher
    with ExitStack() as stack:
        if state["loss_parallel"]:
            loss._enable_custom_loss_ops()
            stack.callback(loss._disable_custom_loss_ops)
        stack.callback(setattr, dispatcher, "_allow_implicit_replication", dispatcher._allow_implicit_replication)
        dispatcher._allow_implicit_replication = state["implicit_replication"]
        for name in _FLAGS:
            if name in state:
                stack.callback(setattr, _redistribute, name, getattr(_redistribute, name))
                setattr(_redistribute, name, state[name])
        if read() != state:
            raise CompileFailed("the worker's state for DTensors differs", code="environment-differs")
        yield
