"""An eager run that autograd takes for a compiled one: an edge before its inputs, and one behind its outputs.

Compiled code is one node of the autograd graph. That decides which gradients a program gets, and when: every output of
the node has a gradient, zeros where the loss does not use it; all gradients of its inputs arrive at once; it is
differentiated once (torch/_functorch/_aot_autograd/runtime_wrappers.py, ``CompiledFunction``). The operators of an
eager run are many nodes. So two nodes of ours enclose them, and what is outside sees one region:

    inputs ── _Inputs ── operators of the eager run ── CompiledFunction ── outputs

Which outputs go through the second one is AOTAutograd's choice (``OutputType`` in collect_metadata_analysis.py): an
input that is returned is that very tensor; a view of an input is made again on the input; views of one intermediate
stay views of one tensor; all others become tensors of their own.

Private names: torch.Tensor.{_base, _is_view, _view_func}, torch.UntypedStorage._cdata,
torch.autograd._unsafe_preserve_version_counter, torch._C._functorch.peek_interpreter_stack,
torch._dynamo.compiled_autograd.{compiled_autograd_enabled, in_compiled_autograd_region},
torch._dynamo.config.compiled_autograd, torch._dynamo.decorators.skip,
torch._functorch._aot_autograd.runtime_wrappers.coerce_to_expected_memory_format,
torch._functorch._aot_autograd.schemas.MemoryFormatMeta.from_tensor,
torch._subclasses.fake_tensor.FakeTensorMode.from_tensor, torch.utils._python_dispatch._disable_current_modes.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._dynamo.compiled_autograd
import torch._dynamo.config
import torch._dynamo.decorators
import torch.fx
from torch._functorch._aot_autograd.runtime_wrappers import coerce_to_expected_memory_format
from torch._functorch._aot_autograd.schemas import MemoryFormatMeta
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

# A backward that a program calls within a compiled function runs in Python where Dynamo looks for frames to trace.
_not_dynamos = torch._dynamo.decorators.skip


class _Inputs(torch.autograd.Function):
    """Before the operators: each differentiable input, as a tensor with a history of its own."""

    @staticmethod
    def forward(ctx: Any, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in inputs)

    @staticmethod
    @_not_dynamos
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():
            # create_graph: AOTAutograd returns gradients that say so, and refuses when they are differentiated.
            # (torch's once_differentiable would return gradients that say that they are constants.)
            connected = torch.empty(0, requires_grad=True)
            return tuple(_Once.apply(connected, *gradients))
        return gradients


class _Once(torch.autograd.Function):
    @staticmethod
    @_not_dynamos
    def forward(ctx: Any, connected: torch.Tensor, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        detached = list(gradients)
        for at, gradient in enumerate(gradients):  # a comprehension would be a frame for Dynamo
            detached[at] = None if gradient is None else gradient.detach()
        return tuple(detached)

    @staticmethod
    @_not_dynamos
    def backward(ctx: Any, *_: Any) -> Any:
        # In the words of AOTAutograd, for those who look for them.
        raise RuntimeError("torch.compile with aot_autograd does not currently support double backward")


class CompiledFunction(torch.autograd.Function):
    """Behind the operators. Its name is that of AOTAutograd's, since ``grad_fn.name()`` shows it."""

    @staticmethod
    def forward(ctx: Any, copied: set[int], *outputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = tuple(tensor.clone() if at in copied else tensor.detach() for at, tensor in enumerate(outputs))
        ctx.formats = [MemoryFormatMeta.from_tensor(tensor) if _is_plain(tensor) else None for tensor in made]
        return made

    @staticmethod
    @_not_dynamos
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        _ = ctx.saved_tensors  # a second backward through a graph that is not retained is an error, whatever was saved
        given = list(gradients)
        # Those of a sum are one number, expanded: a Function of the program's that takes its gradient by ``view`` gets
        # what AOTAutograd makes of it.
        for at, gradient in enumerate(gradients):  # a comprehension would be a frame for Dynamo
            if ctx.formats[at] is not None and _is_plain(gradient):
                given[at] = coerce_to_expected_memory_format(gradient, ctx.formats[at])
        return (None, *given)


@_not_dynamos
def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided


class _Assign(torch.autograd.Function):
    """An input that the graph has changed in place becomes an output of it."""

    @staticmethod
    def forward(ctx: Any, changed: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(changed)
        ctx.is_view = changed._is_view()
        return changed

    @staticmethod
    @_not_dynamos
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        # Where it is a view, None would be taken for the gradient of all of its base.
        return torch.zeros_like(gradient) if ctx.is_view else None, gradient


def records() -> bool:
    """Whether autograd records what runs now, and nothing records autograd."""
    return (
        torch.is_grad_enabled()
        and torch._C._functorch.peek_interpreter_stack() is None
        # Compiled autograd captures what the backward calls; Python's Functions would be in its graphs.
        and not torch._dynamo.compiled_autograd.compiled_autograd_enabled
        and not torch._dynamo.compiled_autograd.in_compiled_autograd_region
        and not torch._dynamo.config.compiled_autograd
    )


def differentiable(args: Sequence[Any]) -> list[int]:
    """The positions of the inputs that gradients may be asked for."""
    return [at for at, value in enumerate(args) if isinstance(value, torch.Tensor) and value.requires_grad]


def share_memory(args: Sequence[Any], positions: list[int]) -> bool:
    """Whether one of these inputs lies in the memory of another one, whichever that is."""
    counted = Counter(storage(value) for value in args if isinstance(value, torch.Tensor))
    return any(counted[storage(args[at])] > 1 for at in positions)


def without_gradient(run: Callable[..., Any], args: Sequence[Any], positions: list[int]) -> frozenset[int]:
    """Which of these inputs get no gradient, whatever the outputs get; tried on fake tensors.

    Only of those that have a history, as AOTAutograd does (``_compute_indices_of_inps_to_detach`` in
    torch/_functorch/_aot_autograd/graph_compile.py). None where it cannot be told.
    """
    asked = [at for at in positions if not args[at].is_leaf]
    try:
        with (
            _disable_current_modes(),
            FakeTensorMode(allow_non_fake_inputs=True) as mode,
            torch.random.fork_rng(devices=()),
            # Those of the program would see fake tensors; a checkpoint's count them.
            torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor),
        ):
            fakes = [
                mode.from_tensor(value.detach(), static_shapes=True) if isinstance(value, torch.Tensor) else value
                for value in args
            ]
            for at in positions:
                fakes[at].requires_grad_()
            inner, histories = _inside(fakes, positions)
            outputs = run(*inner)
            changed = [inner[at] for at, before in histories.items() if inner[at].grad_fn is not before]
            given = [
                tensor
                for tensor in [*(outputs if isinstance(outputs, (tuple, list)) else [outputs]), *changed]
                if isinstance(tensor, torch.Tensor) and tensor.requires_grad
            ]
            if not given:
                return frozenset(asked)
            ones = [torch.ones_like(tensor) for tensor in given]
            gradients = torch.autograd.grad(given, [fakes[at] for at in asked], ones, allow_unused=True)
    except Exception:  # noqa: BLE001 - an operator without a fake, data that only a run has
        return frozenset()
    return frozenset(at for at, gradient in zip(asked, gradients, strict=True) if gradient is None)


def run_between(
    run: Callable[..., Any], args: Sequence[Any], positions: list[int], last: frozenset[int], apart: frozenset[int]
) -> Any:
    """What ``run(*args)`` returns, between the edges. ``positions``: of ``differentiable``; ``last``: which outputs no
    operator of the graph takes; ``apart``: of ``without_gradient``.

    The inputs that get no gradient are parted from their history. Autograd would go on to it without a gradient: to the
    step that a recurrent network's state came from, whose graph is freed.
    """
    taken = [value.detach().requires_grad_() if at in apart else value for at, value in enumerate(args)]
    inner, histories = _inside(taken, positions)
    outputs = run(*inner)
    if not isinstance(outputs, (tuple, list)):
        return _Outputs(args, inner, histories).finished([outputs], last)[0]
    return type(outputs)(_Outputs(args, inner, histories).finished(outputs, last))


def _inside(args: Sequence[Any], positions: list[int]) -> tuple[list[Any], dict[int, Any]]:
    """The arguments as the operators get them, and the history of each tensor of them."""
    inner = list(args)
    for at, tensor in zip(positions, _Inputs.apply(*(args[at] for at in positions)), strict=True):
        inner[at] = tensor
    return inner, {at: value.grad_fn for at, value in enumerate(inner) if isinstance(value, torch.Tensor)}


class _Outputs:
    """The outputs of one run, as autograd is to see them."""

    def __init__(self, args: Sequence[Any], inner: list[Any], histories: dict[int, Any]) -> None:
        self._args = args
        self._inner = inner
        self._at = {id(value): at for at, value in enumerate(inner) if isinstance(value, torch.Tensor)}
        self._storages = {storage(value) for value in inner if isinstance(value, torch.Tensor)}
        self._changed = [at for at, before in histories.items() if inner[at].grad_fn is not before]
        self._through: list[torch.Tensor] = []  # what goes through the node
        self._numbers: dict[int, int] = {}  # of each, by identity: where it is among them

    def finished(self, outputs: Sequence[Any], last: frozenset[int]) -> list[Any]:
        tensors = [output for output in outputs if isinstance(output, torch.Tensor)]
        in_storage = Counter(storage(tensor) for tensor in tensors)
        # Torch refuses to change what comes several at once (of ``chunk``) in place: those count for nobody else.
        may_change = Counter(storage(tensor) for tensor in tensors if not _is_one_of_many(tensor))
        places = [self._place(output, may_change) for output in outputs]
        changed = [self._pass(self._inner[at]) for at in self._changed]
        if not self._through:
            return [place(()) for place in places]
        alone = {id(outputs[at]) for at in last}
        copied = {
            number
            for number, tensor in enumerate(self._through)
            if id(tensor) in alone and _is_kept_in_vain(tensor) and in_storage[storage(tensor)] == 1
        }
        with torch.enable_grad():  # a graph may end in another mode than it began in
            made = CompiledFunction.apply(copied, *self._through)
            for at, number in zip(self._changed, changed, strict=True):
                # What was saved of the tensor since the graph changed it is as it was saved.
                with torch.autograd._unsafe_preserve_version_counter(self._args[at]):
                    _Assign.apply(self._args[at], made[number])
            return [place(made) for place in places]

    def _pass(self, tensor: torch.Tensor) -> int:
        """Its number among the node's outputs."""
        number = self._numbers.setdefault(id(tensor), len(self._through))
        if number == len(self._through):
            self._through.append(tensor)
        return number

    def _place(self, output: Any, may_change: Counter[Any]) -> Callable[[Sequence[torch.Tensor]], Any]:
        """What gives the output, once there are those of the node."""
        at = self._at.get(id(output))
        if at is not None:
            return lambda _made: self._args[at]
        if not isinstance(output, torch.Tensor) or not output.requires_grad:
            alone = _alone(output, self._storages)
            return lambda _made: alone
        base = output._base
        others = may_change[storage(output)]
        if storage(output) in self._storages:
            of = self._at.get(id(base))
            if of is None or (others == 0 and _is_one_of_many(output)):
                number = self._pass(output)
                return lambda made: made[number]
            return lambda _made: output._view_func(self._args[of])
        if base is not None and base.requires_grad and others > 1:
            number = self._pass(base)
            return lambda made: output._view_func(made[number])
        number = self._pass(output)
        return lambda made: made[number]


def run_alone(run: Callable[..., Any], args: Sequence[Any]) -> Any:
    """What ``run(*args)`` returns where no gradient is asked for."""
    outputs = run(*args)
    if not isinstance(outputs, (tuple, list)):
        return outputs
    if not any(isinstance(output, torch.Tensor) and output._is_view() for output in outputs):
        return outputs
    storages = {storage(value) for value in args if isinstance(value, torch.Tensor)}
    return type(outputs)(_alone(output, storages) for output in outputs)


def _alone(output: Any, storages: set[Any]) -> Any:
    """A view of an intermediate as a tensor of its own, over the same memory: so compiled code returns it, and a custom
    Function that passes it on (a reentrant checkpoint) lets it be changed in place.
    """
    if (
        isinstance(output, torch.Tensor)
        and output._is_view()
        and not output.requires_grad
        and storage(output) not in storages
    ):
        return output.detach()
    return output


def _is_kept_in_vain(tensor: torch.Tensor) -> bool:
    """Whether the operator that made it keeps it for its backward, and compiled code does not: of relu that keeps where
    it is zero, of amax where the input is equal to it. So the caller may change it in place. (What compiled code keeps
    as well, as of exp, he may not.)
    """
    return tensor.grad_fn is not None and tensor.grad_fn.name() in _KEEP_THEIR_RESULT


_KEEP_THEIR_RESULT = frozenset(
    {"AmaxBackward0", "AminBackward0", "AminmaxBackward0", "CumprodBackward0", "MaxBackward1", "MedianBackward0",
     "MinBackward1", "NanmedianBackward0", "ProdBackward0", "ProdBackward1", "ReluBackward0", "SgnBackward0"}
)  # fmt: skip

# What makes several views at once (torch::autograd's CreationMeta::MULTI_OUTPUT_NODE).
_SEVERAL_VIEWS = ("Unbind", "Split", "TensorSplit", "Chunk", "UnsafeSplit")


def _is_one_of_many(tensor: torch.Tensor) -> bool:
    return tensor.grad_fn is not None and tensor.grad_fn.name().startswith(_SEVERAL_VIEWS)


def storage(tensor: torch.Tensor) -> Any:
    """What is equal for tensors over one memory."""
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # sparse, or a wrapper of others
        return id(tensor)
