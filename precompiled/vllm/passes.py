"""Encodes vLLM's passes over a graph as plain data: a pass's class, and the values that the pass reads.

The key contains all this data (torch_internals/user_code/code_settings.py). The worker rebuilds the pass in an
environment with exactly this data, so the pass can read no other part of the configuration. The rebuilt pass equals
the program's if it has the same ``uuid()``, and if its process has the same implementations of vLLM's operators and
supports the same ones. vLLM's ``uuid()`` covers the sources of the pass's parts.

Names of vLLM: vllm.compilation.passes.inductor_pass.{pass_context, get_pass_context, PassContext.donated_input_ids},
vllm.config.{VllmConfig, set_current_vllm_config}, vllm.config.utils.Range, vllm.ir.op.{IrOp.{registry, get_priority,
set_priority}, IrOpImpl.{impl_fn, provider, supported}}. Checked on 0.32.0.
"""

from __future__ import annotations

import dataclasses
import sys
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, NoReturn

import torch

from precompiled.core.errors import Bypass, CompileFailed
from precompiled.torch_internals.user_code.code_settings import GraphPass

_CODE = "vllm-context"

# The parts of vLLM's configuration that passes read and call. A worker cannot read any other part.
_READ = {
    "compilation_config": ("backend", "custom_ops", "mode", "splitting_ops", "use_inductor_graph_partition"),
    "device_config": ("device",),
    "model_config": ("dtype",),
    "scheduler_config": ("max_num_batched_tokens",),
}
_CALLED = {"model_config": ("using_transformers_backend",)}
# Counters that passes update and that no code reads.
_COUNTED = ("enabled_custom_ops", "disabled_custom_ops")

# _made: vLLM's own pass for each Pass. _donated: during a compile, the donated inputs that the pass before AOTAutograd
# leaves for the pass after AOTAutograd.
_made: weakref.WeakKeyDictionary[Pass, Any] = weakref.WeakKeyDictionary()
_donated: list[set[int]] = []


def wrap_pass(real: object, config: object, compile_range: tuple[int, int]) -> Pass:
    """A pass that does what ``real`` does. Raises Bypass if the configuration does not describe ``real`` completely."""
    from vllm.ir.op import IrOp

    implementations = [found for op in IrOp.registry.values() for found in op.impls.values()]
    modules = [sys.modules[name] for name in sorted({found.impl_fn.__module__ for found in implementations})]
    priorities = {name: list(op.get_priority()) for name, op in sorted(IrOp.registry.items()) if op.get_priority()}
    made = Pass(type(real), _sent(config), list(compile_range), priorities, modules)
    try:
        with made._surroundings() as again:
            same = _identity(again) == _identity(real)
    except CompileFailed as error:
        raise Bypass(str(error), code=_CODE) from error
    if not same:
        raise Bypass(f"a {type(real).__name__} has passes that are not in its configuration", code=_CODE)
    return made


class Pass(GraphPass):
    """A pass of vLLM of the class ``kind``, created from ``config``."""

    def __init__(
        self,
        kind: type,
        config: Mapping[str, object],
        compile_range: list[int],
        priorities: dict[str, list[str]],
        modules: list[ModuleType],
    ) -> None:
        """``priorities`` orders the implementations of each operator. ``modules`` register the implementations.

        A worker imports ``modules`` first: they load vLLM's library, which fails if one of its operators is already
        defined.
        """
        self.kind, self.config, self.compile_range = kind, config, compile_range
        self.priorities, self.modules = priorities, modules

    def __call__(self, graph: object) -> None:
        """Change the graph as vLLM's pass does."""
        from vllm.compilation.passes.inductor_pass import get_pass_context

        with self._surroundings() as real:
            context = get_pass_context()
            if _is_before_autograd(real):
                _donated.clear()
            elif _donated:
                context.donated_input_ids = _donated.pop()
            else:
                raise CompileFailed("a pass of vLLM runs twice, or without the pass before it", code=_CODE)
            real(graph)
            if _is_before_autograd(real):
                _donated.append(context.donated_input_ids)

    def uuid(self) -> str:
        """The identity of vLLM's pass, and everything that it reads."""
        is_new = self not in _made
        with self._surroundings() as real:
            read = [self.config, self.compile_range, self.priorities, _identity(real)]
        # In a compile, include the donated inputs, because Inductor's own cache may get the same graph with different
        # donated inputs.
        return repr(read if is_new else [*read, *map(sorted, _donated)])

    @contextmanager
    def _surroundings(self) -> Iterator[Any]:
        """Set up the environment that vLLM's pass needs, and yield that pass."""
        from vllm.compilation.passes.inductor_pass import pass_context
        from vllm.config import set_current_vllm_config
        from vllm.config.utils import Range
        from vllm.ir.op import IrOp

        start, end = self.compile_range
        config = _Config("vllm_config", self.config)
        for name in _COUNTED:
            setattr(config.compilation_config, name, Counter())
        with ExitStack() as stack:
            stack.enter_context(set_current_vllm_config(config))
            stack.enter_context(pass_context(Range(start=start, end=end)))
            for operator, priority in self.priorities.items():
                stack.enter_context(IrOp.registry[operator].set_priority(priority))
            if self not in _made:
                _made[self] = _new(self.kind, config)
            yield _made[self]


def _new(kind: Any, config: _Config) -> object:
    if not hasattr(kind, "configure"):
        return kind(config)
    made = kind()
    made.configure(config)
    return made


def _is_before_autograd(real: object) -> bool:
    return not hasattr(real, "configure")


def _identity(real: Any) -> str:
    from vllm.ir.op import IrOp

    choices = {
        name: sorted((found.provider, bool(found.supported)) for found in op.impls.values())
        for name, op in sorted(IrOp.registry.items())
    }
    return f"{real.uuid()} {choices}"


def _sent(config: Any) -> dict[str, object]:
    """Return, as plain data, the values of vLLM's configuration that its passes read. Raises Bypass."""
    if config.compile_debug_dump_path():
        raise Bypass("vLLM must write its graphs to files (debug_dump_path)", code=_CODE)
    found: dict[str, Any] = {"compile_debug_dump_path()": None}
    for part, names in _READ.items():
        held = getattr(config, part)
        if held is None:
            found[part] = None
            continue
        found[part] = {name: _plain(getattr(held, name)) for name in names}
        found[part].update((f"{name}()", getattr(held, name)()) for name in _CALLED.get(part, ()))
    settings = config.compilation_config.pass_config
    fields = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    found["compilation_config"]["pass_config"] = {"class": type(settings), "fields": fields}
    return found


def _plain(value: object) -> object:
    """Convert a device to its name, and an enum member to its number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, torch.device):
        if value.index is not None:
            raise Bypass(f"the device of vLLM's configuration is {value}", code=_CODE)
        return {"device": value.type}
    return value


class _Config:
    """A part of vLLM's configuration: it has the values that were sent, and refuses any other read."""

    def __init__(self, path: str, values: Mapping[str, object]) -> None:
        self._path = path
        for name, value in values.items():
            setattr(self, name.removesuffix("()"), self._value(name, value))

    def _value(self, name: str, value: object) -> object:
        if name.endswith("()"):
            return lambda: value
        if not isinstance(value, dict):
            return value
        if "device" in value and len(value) == 1 and isinstance(value["device"], str):
            return torch.device(value["device"])
        if "class" in value:
            made = object.__new__(value["class"])
            vars(made).update(value["fields"])
            return made
        return _Config(f"{self._path}.{name}", value)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        said = f"a pass of vLLM's reads {self._path}.{name} of its configuration, which is not sent"
        raise CompileFailed(said, code=_CODE)
