"""Encodes launches of user Triton kernels in a graph, and decodes them.

Dynamo puts ``kernel[grid](...)`` into a graph as a call of ``triton_kernel_wrapper_mutation``. (AOTAutograd replaces
this operator by ``triton_kernel_wrapper_functional``.) The call's ``kernel_idx`` and ``constant_args_idx`` are
positions in a table that each process fills in its own order (torch/_higher_order_ops/triton_kernel_wrap.py:
KernelSideTable). The canonical target of a launch has one of these forms::

    ["kernel", operator, [module, qualified name, digest of its sources], fingerprint, [[argument, value], ...]]
    ["kernel", operator, [module, qualified name, digest of its sources], fingerprint, [...], tuning]
    ["kernel", operator, ["", name, source], "", [...], tuning]

- The worker imports the module. For a kernel that cannot be imported, the source is sent (program_kernels.py).
- The fingerprint covers what a program can change without an edit: the autotuner's configurations, and the globals that
  the kernel reads (Triton's own cache key covers these as well). If a worker computes a different fingerprint, it
  refuses the graph, and the client compiles the graph in process.
- ``tuning`` describes an autotuner that no module contains: one that the program creates, or one that Dynamo creates
  from ``triton.heuristics`` (the heuristics' results become the autotuner's configurations). ``tuning`` is null without
  an autotuner.

Private names: torch._higher_order_ops.triton_kernel_wrap.kernel_side_table.{add_kernel, get_kernel, add_constant_args,
get_constant_args}, torch._ops.HigherOrderOperator._name, triton.runtime.jit.JITFunction.cache_key,
triton.runtime.autotuner.Autotuner.{fn, configs, keys, restore_value, reset_to_zero},
triton.runtime.autotuner.Config.{kwargs, num_warps, num_stages, num_ctas, maxnreg, pre_hook, ir_override},
triton.language.core.dtype.name.
Checked on 2.11.0, 2.15.0 with the Triton that they require (2.13.0 for the CPU requires none).
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
import torch.fx

from precompiled.core.errors import Bypass
from precompiled.torch_internals.user_code import program_kernels, user_modules
from precompiled.torch_internals.user_code.program_source import PROGRAMS

KIND = "kernel"
_OPERATORS = frozenset({"triton_kernel_wrapper_mutation", "triton_kernel_wrapper_functional"})
_NUMBERS = ("kernel_idx", "constant_args_idx")
_TUNED_BY = ("keys", "restore_value", "reset_to_zero")
_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override")


def is_launch(target: object) -> bool:
    """Whether a node's target launches a user's Triton kernel."""
    return isinstance(target, torch._ops.HigherOrderOperator) and target._name in _OPERATORS


def encode(node: torch.fx.Node) -> tuple[list[object], dict[str, object]]:
    """The canonical target of a launch, and the launch's other keyword arguments.

    Raises Bypass if the kernel cannot be sent.
    """
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    numbers = [node.kwargs[name] for name in _NUMBERS]
    kernel = kernel_side_table.get_kernel(numbers[0])
    constants = kernel_side_table.get_constant_args(numbers[1])
    rest = {name: value for name, value in node.kwargs.items() if name not in _NUMBERS}
    values = [[name, _encode_constant(value)] for name, value in constants.items()]
    try:
        return [KIND, node.target._name, _name(kernel), _fingerprint(kernel), values], rest
    except Bypass:
        function = _function(kernel)
        tuning = _tuning(kernel) if kernel is not function else None
        if (name := _name_of_function(function)) is not None:
            return [KIND, node.target._name, name, function.cache_key, values, tuning], rest
        name = ["", function.__name__, program_kernels.describe(function)]
        return [KIND, node.target._name, name, "", values, tuning], rest


def decode(name: list[Any]) -> tuple[Any, dict[str, int]]:
    """Return the operator, and the positions of the kernel and of its constants in this process's table.

    Raises ValueError, ImportError or AttributeError if the kernel differs in this process, or for data that ``encode``
    never returns.
    """
    _kind, operator, found, fingerprint, values, *tuning = name
    if operator not in _OPERATORS:
        raise ValueError(f"{operator} launches no kernel")
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    if found[0]:
        kernel = user_modules.find(found)
        if tuning:
            kernel = program_kernels.innermost(kernel)
        here = kernel.cache_key if tuning else _fingerprint(kernel)
    else:
        kernel, here = program_kernels.create_kernel(found[2]), ""
    if tuning and tuning[0] is not None:
        kernel = _tuned(kernel, tuning[0])
    if here != fingerprint:
        raise ValueError(f"{found[0]}.{found[1]} differs from the kernel of the process that captured the graph")
    constants = {argument: _decode_constant(value) for argument, value in values}
    numbers = (kernel_side_table.add_kernel(kernel), kernel_side_table.add_constant_args(constants))
    return getattr(torch.ops.higher_order, operator), dict(zip(_NUMBERS, numbers, strict=True))


def modules_of(name: list[Any]) -> dict[str, str]:
    """The module that a worker must import for the launch, with the digest of its sources."""
    module, _qualname, digest = name[2]
    return {module: digest} if module else program_kernels.modules_of(digest)


def _function(kernel: object) -> Any:
    """The JITFunction inside an autotuner, or the kernel itself. Dynamo allows one autotuner and no other wrapper."""
    return getattr(kernel, "fn", kernel) if hasattr(kernel, "configs") else kernel


def _name(kernel: object) -> user_modules.Name:
    function = _function(kernel)
    # An autotuner and Dynamo's object for heuristics have no names, and no module contains Dynamo's object.
    return user_modules.name_of(kernel, function.__module__, function.__name__, code="user-kernel")


def _name_of_function(function: Any) -> user_modules.Name | None:
    """The name under which a module has a function's wrapper (heuristics, autotuner); None if it cannot be imported."""
    module, name = function.__module__, function.__name__
    if module in PROGRAMS or not program_kernels.is_in_module(function):
        return None
    return [module, name, user_modules.modules_digest([module], code="user-kernel")]


def _tuning(tuner: Any) -> dict[str, object]:
    found: dict[str, Any] = {"configs": [_encode_config(config) for config in tuner.configs]}
    for name in _TUNED_BY:
        found[name] = list(getattr(tuner, name, None) or ())
        if not all(type(item) is str for item in found[name]):
            raise Bypass(f"a Triton kernel is tuned with a {name} that is not a list of names", code="user-kernel")
    return found


def _tuned(function: Any, tuning: dict[str, Any]) -> Any:
    import triton

    configs = [
        triton.Config({key: _decode_constant(value) for key, value in config["kwargs"]}, **config["options"])
        for config in tuning["configs"]
    ]
    lists = {name: tuning[name] for name in _TUNED_BY[1:] if tuning[name]}
    return triton.autotune(configs=configs, key=tuning[_TUNED_BY[0]], **lists)(function)


def _encode_config(config: Any) -> dict[str, object]:
    if getattr(config, "pre_hook", None) is not None:
        raise Bypass("a Triton kernel has a configuration with a hook", code="user-kernel")
    options = {name: value for name in _OPTIONS if (value := getattr(config, name, None)) is not None}
    return {
        "kwargs": [[name, _encode_constant(value)] for name, value in config.kwargs.items()],
        "options": {name: _encode_constant(value) for name, value in options.items()},
    }


def _fingerprint(kernel: Any) -> str:
    facts = [_function(kernel).cache_key]
    if kernel is not _function(kernel):
        facts += [str(config) for config in kernel.configs]
        facts += [repr(getattr(kernel, name, None)) for name in ("keys", "restore_value", "reset_to_zero")]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def _encode_constant(value: Any) -> object:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value).__module__.startswith("triton.language") and type(value).__name__ == "dtype":
        return {"x": ["tl", value.name]}  # a dtype (tl.float32), as a tl.constexpr
    raise Bypass(f"a Triton kernel is called with a constant of type {type(value).__qualname__}", code="user-kernel")


def _decode_constant(value: object) -> object:
    if not isinstance(value, dict):
        return value
    from triton.language.core import dtype

    return dtype(value["x"][1])
