"""Runs eager and compiled code of a graph on the same inputs, without effects on the program, and compares the results.

- The runs get detached tensors over the program's memory. So no hook fires, and no ``.grad`` changes. Inputs that the
  graph changes are copied for each run, with their whole storage, because code may depend on an input's offset.
- Each run begins with the program's random state. After each run, the program's random state and grad mode are
  restored.
- In grad mode, ``torch.autograd.grad`` computes the gradients of all inputs, for one fixed random gradient of each
  output.
- The reference (comparison.py) is an eager run in float64, or in float32 if the graph uses half types or autocast.
  Inputs of less precise types are converted to this type. A dispatch mode converts tensors that the graph itself casts
  or creates.

``why_not`` lists the graphs and calls for which a comparison is impossible (docs/explanation/stand-in.md).

Private names: torch._C._functorch.peek_interpreter_stack, torch._C._autograd._top_saved_tensors_default_hooks,
torch._C._len_torch_function_stack, torch._dynamo.compiled_autograd.{compiled_autograd_enabled,
in_compiled_autograd_region}, torch.utils._python_dispatch.{TorchDispatchMode, _disable_current_modes,
_get_current_dispatch_mode_stack}, torch._C._autocast_supported_devices, torch._ops.OpOverload._schema.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo.compiled_autograd
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode_stack

from precompiled.core import interruptions, memory
from precompiled.torch_internals.eager import autograd_edges, comparison, undo_effects
from precompiled.torch_internals.eager.comparison import Difference, Undecided
from precompiled.torch_internals.eager.stand_in import StandIn

# For larger inputs, the gradients and the reference's inputs could use up the memory.
_MAX_INPUT_BYTES = 2 << 30
_SPARE = 2
_PLAIN = (torch.Tensor, torch.nn.Parameter, int, float, bool, type(None))
_HALVES = (torch.float16, torch.bfloat16)
# Maps the dtypes of a run to the dtypes of its reference.
_OF_HALVES = {**dict.fromkeys(_HALVES, torch.float32), torch.complex32: torch.complex64}
_OF_SINGLES = {
    **dict.fromkeys((*_HALVES, torch.float32), torch.float64),
    **dict.fromkeys((torch.complex32, torch.complex64), torch.complex128),
}
Dtypes = dict[torch.dtype, torch.dtype]


@dataclass(frozen=True)
class Results:
    """The results of one run, by their names in messages."""

    values: dict[str, Any]
    dtypes: dict[str, torch.dtype]  # dtypes of the results whose gradients were given


class Trial:
    """One comparison, for the inputs ``args`` of a call.

    ``names``: the names of the inputs for messages. By default, these are the stand-in's names of the inputs.
    """

    def __init__(self, eager: StandIn, args: Sequence[Any], names: Sequence[str] | None = None) -> None:
        self._eager = eager
        self._args = args
        self._changed = eager.effects.inputs
        self._records = torch.is_grad_enabled()
        self._names = names or eager.input_names()

    def why_not(self) -> str:
        """Why this call cannot be compared, as a sentence; "" if it can be compared."""
        return _why_not_graph(self._eager) or _why_not_call(self._args, self._changed) or self._why_not_draws()

    def _why_not_draws(self) -> str:
        # This test comes last, because it may need a run on fake tensors.
        draws = self._eager.effects.draws and self._eager.draws(self._args)
        return "the graph draws random numbers" if draws else ""

    def differences(self, compiled: Callable[..., Any]) -> Iterator[Difference]:
        """Run eager and compiled code. Yields the wrong results of compiled code.

        Raises Undecided, or any exception of a run.
        """
        expected = self._run(self._eager, self._private())
        given = expected.dtypes
        found = self._run(compiled, self._private(), given)

        @functools.cache
        def reference() -> Results:
            try:
                return self._reference(given, self._wide_dtypes(expected))
            except Exception as error:
                interruptions.pass_on(error)
                raise Undecided(f"a result differs, and its reference raised {type(error).__name__}") from error

        counts = [sum(name.startswith("output") for name in one.values) for one in (expected, found)]
        if counts[0] != counts[1]:
            yield Difference("the graph", f"has {counts[1]} outputs in compiled code, and {counts[0]} in eager code")
            return
        for name, value in expected.values.items():
            exact = functools.partial(lambda name: reference().values[name], name)
            wrong = comparison.difference(name, value, found.values.get(name), exact)
            if wrong is not None:
                yield wrong

    # ------------------------------------------------------------------ inputs

    def _private(self) -> list[Any]:
        """The inputs of a run: detached, and copied if the graph changes their memory."""
        copied = {autograd_edges.storage(self._args[at]) for at in self._changed if _is_tensor(self._args[at])}
        copies: dict[object, torch.UntypedStorage] = {}

        def private(value: Any) -> Any:
            if not _is_tensor(value):
                return value
            storage = autograd_edges.storage(value)
            if storage not in copied:
                return value.detach()
            if storage not in copies:
                copies[storage] = value.untyped_storage().clone()
            made = torch.empty(0, dtype=value.dtype, device=value.device)
            return made.set_(copies[storage], value.storage_offset(), value.size(), value.stride())

        with torch.no_grad():
            return [private(value) for value in self._args]

    def _wide_dtypes(self, expected: Results) -> Dtypes:
        values = [value for value in (*self._args, *expected.values.values()) if _is_tensor(value)]
        of_halves = any(value.dtype in _HALVES for value in values) or any(
            map(torch.is_autocast_enabled, torch._C._autocast_supported_devices())
        )
        return _OF_HALVES if of_halves else _OF_SINGLES

    def _wide(self, dtypes: Dtypes) -> list[Any]:
        """The inputs of the reference, with the strides and offsets of the originals."""
        with torch.no_grad():
            return [_widened(value, dtypes) if _is_tensor(value) else value for value in self._args]

    # ------------------------------------------------------------------ runs

    def _reference(self, given: dict[str, torch.dtype], dtypes: Dtypes) -> Results:
        inputs = self._wide(dtypes)
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(self._records))  # the comparison has switched it off
            for device in torch._C._autocast_supported_devices():
                if torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, enabled=False))
            stack.enter_context(_Wide(dtypes))
            return self._run(self._eager, inputs, given)

    def _run(
        self, function: Callable[..., Any], inputs: list[Any], given: dict[str, torch.dtype] | None = None
    ) -> Results:
        """Run ``function``. ``given``: the dtypes in which the outputs' gradients are drawn. If it is None, these are
        the dtypes of the results.
        """
        with _without_a_trace(self._args):
            leaves: dict[str, torch.Tensor] = {}
            for at, original in enumerate(self._args):
                if _is_tensor(original) and original.requires_grad:
                    leaf = inputs[at].requires_grad_(True)
                    leaves[f"the gradient of {self._names[at]}"] = leaf
                    if at in self._changed and self._records:
                        # Autograd does not permit an in-place change of a leaf that requires a gradient.
                        (inputs[at],) = autograd_edges.with_history(leaf)
            outputs = function(*inputs)
            outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
            values = {f"output {at}": value for at, value in enumerate(outputs)}
            values |= {f"the changed input {self._names[at]}": inputs[at] for at in self._changed}
            if not self._records or not leaves:
                return Results(values, {})
            roots = {name: value for name, value in values.items() if _is_tensor(value) and value.requires_grad}
            dtypes = {name: value.dtype for name, value in roots.items()}
            gradients = [_cotangent(value, (given or dtypes).get(name, value.dtype)) for name, value in roots.items()]
            if roots:
                found = torch.autograd.grad(list(roots.values()), list(leaves.values()), gradients, allow_unused=True)
                # Eager and compiled code may differ in which unused inputs get zeros, and which get None.
                for (name, leaf), gradient in zip(leaves.items(), found, strict=True):
                    values[name] = torch.zeros_like(leaf) if gradient is None else gradient
            return Results(values, dtypes)


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _widened(value: torch.Tensor, dtypes: Dtypes) -> torch.Tensor:
    wide = dtypes.get(value.dtype)
    if wide is None:
        return value.detach().clone()
    storage = value.untyped_storage()
    flat = torch.empty(0, dtype=value.dtype, device=value.device)
    flat.set_(storage, 0, (storage.nbytes() // value.itemsize,), (1,))
    return flat.to(wide).as_strided(value.size(), value.stride(), value.storage_offset())


def _cotangent(output: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a random gradient that is the same for each run. ``dtype``: the dtype of the output in eager code. The
    values are drawn in this dtype for all runs.

    The values are in [0.5, 1.5): values of both signs would cancel each other, which would increase all errors.
    """
    with _disable_current_modes():  # in float64, the generator would draw other values
        generator = torch.Generator(output.device).manual_seed(0)
        drawn = torch.rand(output.shape, generator=generator, dtype=dtype, device=output.device) + 0.5
        return drawn.to(output.dtype)


@contextlib.contextmanager
def _without_a_trace(args: Sequence[Any]) -> Iterator[None]:
    random, records = undo_effects.random_state(args), torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_grad_enabled(records)  # a graph may change it for its caller
        undo_effects.restore_random_state(random)


class _Wide(TorchDispatchMode):
    """Widens each new floating tensor: the result of a conversion (``x.half()``), or of a factory (``torch.zeros``)."""

    def __init__(self, dtypes: Dtypes) -> None:
        super().__init__()
        self._dtypes = dtypes

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        args = tuple(map(self._wide, args))
        kwargs = {name: self._wide(value) for name, value in (kwargs or {}).items()}
        made = func(*args, **kwargs)
        is_new = _is_tensor(made) and all(item.alias_info is None for item in func._schema.returns)
        if is_new and made.dtype in self._dtypes and not made.requires_grad:
            return made.to(self._dtypes[made.dtype])
        return made

    def _wide(self, value: Any) -> Any:
        return self._dtypes.get(value, value) if isinstance(value, torch.dtype) else value


def _why_not_graph(eager: StandIn) -> str:
    if eager.effects.lasting:
        return "the graph changes the metadata of a tensor in place"
    if eager.effects.is_opaque():
        return "the graph calls a custom operator"
    return ""


def _why_not_call(args: Sequence[Any], changed: Sequence[int]) -> str:
    if any(type(value) not in _PLAIN for value in args):
        return "an input is not a plain tensor"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "the call is in a transform of torch.func"
    if (
        torch._dynamo.compiled_autograd.compiled_autograd_enabled
        or torch._dynamo.compiled_autograd.in_compiled_autograd_region
    ):
        return "the call is under compiled autograd"
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return "the call is in a checkpoint, or under other hooks on saved tensors"
    if StandIn.looks_for_nan(args):
        return "the call is under detect_anomaly"
    if torch._C._len_torch_function_stack() or _get_current_dispatch_mode_stack():
        return "the call is under a mode of torch, such as a default device"
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured"
    if sum(value.nbytes for value in args if _is_tensor(value)) > _MAX_INPUT_BYTES:
        return f"the graph has inputs of more than {_MAX_INPUT_BYTES >> 30} GiB"
    # If a GPU's memory is full, torch raises an error, which ends only the check. If the host's memory is full, Linux
    # ends the process.
    if memory.available_bytes() < _SPARE * memory.resident_bytes():
        return f"less memory is free than {_SPARE} times the process's memory"
    storages = {autograd_edges.storage(args[at]): args[at] for at in changed if _is_tensor(args[at])}
    if sum(value.untyped_storage().nbytes() for value in storages.values()) > undo_effects.MAX_BYTES:
        return f"the graph changes inputs of more than {undo_effects.MAX_BYTES >> 20} MiB"
    return ""
