"""Makes an eager run look like compiled code to autograd, by one autograd node at its start and one at its end.

Compiled code is a single node of the autograd graph (torch/_functorch/_aot_autograd/runtime_wrappers.py,
``CompiledFunction``). The single node affects which gradients a program gets, and when:

- Every output has a gradient: zeros if the loss does not use the output.
- All gradients of the inputs arrive at once.
- The node can be differentiated only once.

The operators of an eager run are many nodes. So two autograd Functions enclose the operators' nodes, and autograd sees
one region:

    inputs ── _Inputs ── operators of the eager run ── CompiledFunction ── outputs

Which outputs pass through the second node follows from AOTAutograd's rules (``OutputType`` in
collect_metadata_analysis.py):

- A returned input stays the same tensor.
- A view of an input is recreated from the input.
- Views of one intermediate stay views of one tensor.
- All other outputs become separate tensors.

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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch._dynamo.compiled_autograd
import torch._dynamo.config
import torch._dynamo.decorators
import torch.fx
from torch._functorch._aot_autograd.runtime_wrappers import coerce_to_expected_memory_format
from torch._functorch._aot_autograd.schemas import MemoryFormatMeta
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.function import FunctionCtx
from torch.utils._python_dispatch import _disable_current_modes

from precompiled.core import interruptions

# A decorator that prevents Dynamo from tracing a function, in case a program calls a backward inside a compiled
# function.
_not_dynamos = torch._dynamo.decorators.skip


class _Inputs(torch.autograd.Function):
    """The node before the operators. It returns each differentiable input as a tensor with a new history."""

    @staticmethod
    def forward(ctx: FunctionCtx, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in inputs)

    @staticmethod
    @_not_dynamos
    def backward(ctx: FunctionCtx, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():
            # With create_graph, AOTAutograd returns gradients that require a gradient, and raises if they are
            # differentiated. torch's once_differentiable would return gradients that are constants instead.
            connected = torch.empty(0, requires_grad=True)
            return tuple(_Once.apply(connected, *gradients))
        return gradients


class _Once(torch.autograd.Function):
    @staticmethod
    @_not_dynamos
    def forward(
        ctx: FunctionCtx, connected: torch.Tensor, *gradients: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        detached = list(gradients)
        for at, gradient in enumerate(gradients):  # a comprehension would be a separate frame, which Dynamo would trace
            detached[at] = None if gradient is None else gradient.detach()
        return tuple(detached)

    @staticmethod
    @_not_dynamos
    def backward(ctx: FunctionCtx, *_: object) -> object:
        # This is the text of AOTAutograd's error, so that users find it in a web search.
        raise RuntimeError("torch.compile with aot_autograd does not currently support double backward")


class CompiledFunction(torch.autograd.Function):
    """The node after the operators. The class has the name of AOTAutograd's class, because ``grad_fn.name()`` shows the
    name.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, copied: set[int], *outputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = tuple(tensor.clone() if at in copied else tensor.detach() for at, tensor in enumerate(outputs))
        ctx.formats = [MemoryFormatMeta.from_tensor(tensor) if _is_plain(tensor) else None for tensor in made]
        return made

    @staticmethod
    @_not_dynamos
    def backward(ctx: FunctionCtx, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        _ = ctx.saved_tensors  # this read raises at a second backward through a graph that is not retained
        given = list(gradients)
        # The gradient of a sum is one expanded number. AOTAutograd gives this gradient the output's strides, and a
        # custom Function of the program may need these strides (for ``view``).
        for at, gradient in enumerate(gradients):  # a comprehension would be a separate frame, which Dynamo would trace
            if ctx.formats[at] is not None and _is_plain(gradient):
                given[at] = coerce_to_expected_memory_format(gradient, ctx.formats[at])
        return (None, *given)


@_not_dynamos
def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided


class _Assign(torch.autograd.Function):
    """Makes an input an output of CompiledFunction, if the graph has changed the input in place."""

    @staticmethod
    def forward(ctx: FunctionCtx, changed: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(changed)
        ctx.is_view = changed._is_view()
        return changed

    @staticmethod
    @_not_dynamos
    def backward(ctx: FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        # If the input is a view, autograd would treat None as the gradient of the view's whole base.
        return torch.zeros_like(gradient) if ctx.is_view else None, gradient


def records() -> bool:
    """Whether autograd records the current operations, and neither torch.func nor compiled autograd captures them."""
    return (
        torch.is_grad_enabled()
        and torch._C._functorch.peek_interpreter_stack() is None
        # Compiled autograd captures the calls of a backward, and Python Functions would become part of its graphs.
        and not torch._dynamo.compiled_autograd.compiled_autograd_enabled
        and not torch._dynamo.compiled_autograd.in_compiled_autograd_region
        and not torch._dynamo.config.compiled_autograd
    )


def differentiable(args: Sequence[object]) -> list[int]:
    """The positions of the inputs that require a gradient."""
    return [at for at, value in enumerate(args) if isinstance(value, torch.Tensor) and value.requires_grad]


def share_memory(args: Sequence[object], positions: list[int]) -> bool:
    """Whether an input at one of ``positions`` shares memory with another input of the graph."""
    counted = Counter(storage(value) for value in args if isinstance(value, torch.Tensor))
    return any(counted[storage(args[at])] > 1 for at in positions)


def without_gradient(run: Callable[..., object], args: Sequence[Any], positions: list[int]) -> frozenset[int]:
    """The positions of inputs that get no gradient even if all outputs get a gradient. Determined on fake tensors.

    As in AOTAutograd, only inputs with a history count (``_compute_indices_of_inps_to_detach`` in
    torch/_functorch/_aot_autograd/graph_compile.py). Empty if these positions cannot be determined.
    """
    asked = [at for at in positions if not args[at].is_leaf]
    try:
        with (
            _disable_current_modes(),
            FakeTensorMode(allow_non_fake_inputs=True) as mode,
            torch.random.fork_rng(devices=()),
            # The program's hooks must not get fake tensors: a checkpoint's hooks count the tensors that they receive.
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
    except Exception as error:  # noqa: BLE001 - an operator without a fake kernel, or data that only a run has
        interruptions.pass_on(error)
        return frozenset()
    return frozenset(at for at, gradient in zip(asked, gradients, strict=True) if gradient is None)


def run_between(
    run: Callable[..., object], args: Sequence[Any], positions: list[int], last: frozenset[int], apart: frozenset[int]
) -> object:
    """Run ``run(*args)`` between the two autograd nodes.

    ``positions`` come from ``differentiable``, and ``apart`` from ``without_gradient``. ``last`` are the positions of
    the outputs that no operator of the graph uses. Inputs in ``apart`` are detached from their history. Otherwise the
    backward would continue, without a gradient, into the history of these inputs. For the state of a recurrent network,
    the history is the previous step, whose graph is already freed.
    """
    taken = [value.detach().requires_grad_() if at in apart else value for at, value in enumerate(args)]
    inner, histories = _inside(taken, positions)
    outputs = run(*inner)
    if not isinstance(outputs, (tuple, list)):
        return _Outputs(args, inner, histories).finished([outputs], last)[0]
    return type(outputs)(_Outputs(args, inner, histories).finished(outputs, last))


def with_history(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return tensors that share the memory of ``tensors``, but are not leaves of the autograd graph."""
    return tuple(_Inputs.apply(*tensors))


def _inside(args: Sequence[object], positions: list[int]) -> tuple[list[Any], dict[int, Any]]:
    """Apply the first node. Returns the arguments for the operators, and the ``grad_fn`` of each tensor among them."""
    inner = list(args)
    for at, tensor in zip(positions, _Inputs.apply(*(args[at] for at in positions)), strict=True):
        inner[at] = tensor
    return inner, {at: value.grad_fn for at, value in enumerate(inner) if isinstance(value, torch.Tensor)}


class _Outputs:
    """Builds the outputs of one run in the form that autograd must see."""

    def __init__(self, args: Sequence[object], inner: list[Any], histories: Mapping[int, object]) -> None:
        self._args = args
        self._inner = inner
        self._at = {id(value): at for at, value in enumerate(inner) if isinstance(value, torch.Tensor)}
        self._storages = {storage(value) for value in inner if isinstance(value, torch.Tensor)}
        self._changed = [at for at, before in histories.items() if inner[at].grad_fn is not before]
        self._through: list[torch.Tensor] = []  # the tensors that pass through the node
        self._numbers: dict[int, int] = {}  # maps the id of a tensor to its position in ``_through``

    def finished(self, outputs: Sequence[object], last: frozenset[int]) -> list[object]:
        tensors = [output for output in outputs if isinstance(output, torch.Tensor)]
        in_storage = Counter(storage(tensor) for tensor in tensors)
        # If one operator (such as ``chunk``) created several views, torch refuses in-place changes of these views. So
        # this count excludes them.
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
        with torch.enable_grad():  # the graph may have changed the grad mode
            made = CompiledFunction.apply(copied, *self._through)
            for at, number in zip(self._changed, changed, strict=True):
                # Keep the version counter, because tensors that autograd saved after the graph's change are still
                # valid.
                with torch.autograd._unsafe_preserve_version_counter(self._args[at]):
                    _Assign.apply(self._args[at], made[number])
            return [place(made) for place in places]

    def _pass(self, tensor: torch.Tensor) -> int:
        """Pass a tensor through the second node, and return its number among the node's outputs."""
        number = self._numbers.setdefault(id(tensor), len(self._through))
        if number == len(self._through):
            self._through.append(tensor)
        return number

    def _place(self, output: object, may_change: Counter[Any]) -> Callable[[Sequence[torch.Tensor]], object]:
        """Return a function that takes the second node's outputs and returns this output of the graph."""
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


def run_alone(run: Callable[..., object], args: Sequence[object]) -> object:
    """Return the result of ``run(*args)``, for a run in which no input requires a gradient."""
    outputs = run(*args)
    if not isinstance(outputs, (tuple, list)):
        return outputs
    if not any(isinstance(output, torch.Tensor) and output._is_view() for output in outputs):
        return outputs
    storages = {storage(value) for value in args if isinstance(value, torch.Tensor)}
    return type(outputs)(_alone(output, storages) for output in outputs)


def _alone(output: object, storages: set[object]) -> object:
    """If ``output`` is a view of an intermediate and requires no gradient, return a separate tensor over the same
    memory.

    Compiled code returns a view of an intermediate as a separate tensor. So a custom Function (such as a reentrant
    checkpoint) can return the tensor and change it in place.
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
    """Whether the operator that created the tensor keeps it for the backward, although compiled code does not keep it.

    For example, compiled code keeps only the positions of zeros for relu, and only the position of the maximum for
    amax. So the caller may change the results of relu and amax in place, but not the result of exp, which compiled code
    keeps.
    """
    return tensor.grad_fn is not None and tensor.grad_fn.name() in _KEEP_THEIR_RESULT


_KEEP_THEIR_RESULT = frozenset(
    """
    AmaxBackward0 AminBackward0 AminmaxBackward0 CumprodBackward0 MaxBackward1 MedianBackward0 MinBackward1
    NanmedianBackward0 ProdBackward0 ProdBackward1 ReluBackward0 SgnBackward0
    """.split()
)

# The operators that create several views at once (torch::autograd's CreationMeta::MULTI_OUTPUT_NODE).
_SEVERAL_VIEWS = ("Unbind", "Split", "TensorSplit", "Chunk", "UnsafeSplit")


def _is_one_of_many(tensor: torch.Tensor) -> bool:
    return tensor.grad_fn is not None and tensor.grad_fn.name().startswith(_SEVERAL_VIEWS)


def storage(tensor: torch.Tensor) -> object:
    """An identifier that is equal for tensors over the same memory."""
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # a sparse tensor, or a wrapper of other tensors
        return id(tensor)
