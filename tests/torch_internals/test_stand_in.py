"""Tests the contract of the stand-in (docs/explanation/stand-in.md), row by row.

Until a graph's artifact exists, the stand-in runs the graph. The program must see what plain ``torch.compile`` would
show. "Plain" means AOTAutograd with Inductor's passes and partitioner, and ATen operators in place of generated code
(tests/fuzz/contenders.py). The daemon of the test process never replies.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.attention
from support_session import ThisProcess, deaf_daemon
from torch._dynamo import convert_frame
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parents[2]))

from precompiled.client import submit
from precompiled.torch_internals.eager import autograd_edges
from tests.fuzz import contenders

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]
ROWS: dict[str, Callable[[Compile], Any]] = {}


def row(function: Callable[[Compile], Any]) -> Callable[[Compile], Any]:
    ROWS[function.__name__] = function
    return function


def weights(*names: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(4, 4, requires_grad=True) for _ in names]


def raised(function: Callable[[], Any]) -> tuple[str, str]:
    try:
        function()
    except Exception as error:
        return type(error).__name__, str(error).splitlines()[0]
    return "nothing", ""


def kind(tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else tensor.detach().clone()


# ---------------------------------------------------------------- gradients


@row
def a_parameter_whose_output_is_not_in_the_loss_has_zeros(compile: Compile) -> Any:
    a, b = weights("a", "b")
    function = compile(lambda x: (x @ a, x @ b))
    function(torch.ones(2, 4))[0].sum().backward()
    return kind(a.grad), kind(b.grad)


@row
def a_parameter_that_reaches_no_output_has_no_gradient(compile: Compile) -> Any:
    a, b = weights("a", "b")
    function = compile(lambda x: x @ a + (x @ b).detach())
    function(torch.ones(2, 4)).sum().backward()
    return kind(a.grad), kind(b.grad)


class Flattens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.view(-1).mul(2).view(gradient.shape)


@row
def gradients_of_outputs_have_the_strides_of_the_outputs(compile: Compile) -> Any:
    """``view`` in the backward raises an error unless the gradient has the strides of the output.

    The gradient of a sum is one expanded number. The gradient of a transposed tensor is transposed.
    """
    (a,) = weights("a")
    function = compile(lambda x: Flattens.apply(x @ a))
    x = torch.ones(2, 4)
    expanded = raised(lambda: function(x).sum().backward())
    transposed = raised(lambda: (function(x).t() * torch.arange(8.0).view(4, 2)).sum().backward())
    return expanded, transposed, kind(a.grad)


@row
def a_state_that_reaches_no_output_is_not_differentiated(compile: Compile) -> Any:
    """snntorch's ``reset_mem`` resets the state of a recurrent network in this way: with zeros of the state's shape."""
    (a,) = weights("a")
    function = compile(lambda x, state: torch.sigmoid(x @ a + torch.zeros_like(state)))
    state = torch.zeros(4, 4)
    for _ in range(4):  # a backward into the state would reach the previous step's freed graph and raise
        state = function(torch.ones(4, 4), state)
        state.sum().backward()
    return kind(a.grad)


class KeepsNoState(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return x * 2 + state

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * 2, None


@row
def a_state_for_which_a_function_gives_no_gradient_is_not_differentiated(compile: Compile) -> Any:
    (a,) = weights("a")
    function = compile(lambda x, state: KeepsNoState.apply(x @ a, state))
    state = torch.zeros(4, 4)
    seen = []
    for _ in range(4):
        state = function(torch.ones(4, 4), state)
        state.sum().backward()
        seen.append(kind(state))
    return seen, kind(a.grad)


@row
def an_input_has_its_gradient_and_its_hooks_see_it_once(compile: Compile) -> Any:
    a, x = weights("a", "x")
    seen: list[Any] = []
    x.register_hook(lambda gradient: seen.append(kind(gradient)))
    a.register_post_accumulate_grad_hook(lambda tensor: seen.append(kind(tensor.grad)))
    compile(lambda x: (x @ a).tanh())(x).sum().backward()
    return seen, kind(x.grad), kind(a.grad)


@row
def gradients_are_added_to_those_that_are_there(compile: Compile) -> Any:
    (a,) = weights("a")
    function = compile(lambda x: (x @ a).relu())
    for _ in range(3):
        function(torch.ones(2, 4)).sum().backward()
    return kind(a.grad)


@row
def a_hook_on_an_output_sees_zeros_where_the_loss_does_not_use_it(compile: Compile) -> Any:
    (a,) = weights("a")
    left, right = compile(lambda x: (x @ a, x.sin() @ a))(torch.ones(2, 4))
    seen: list[Any] = []
    left.register_hook(lambda gradient: seen.append(kind(gradient)))
    left.sum().backward()
    return seen, kind(a.grad), right.requires_grad


@row
def outputs_have_one_node_of_the_same_name(compile: Compile) -> Any:
    (a,) = weights("a")
    left, right = compile(lambda x: (x @ a, x.sin() @ a))(torch.ones(2, 4))
    return left.grad_fn.name(), left.grad_fn is right.grad_fn


# ---------------------------------------------------------------- backward: repeated and differentiated


@row
def a_second_backward_is_refused_even_where_nothing_was_saved(compile: Compile) -> Any:
    (a,) = weights("a")
    output = compile(lambda: a + 1)()
    output.sum().backward(gradient=torch.tensor(1.0))
    return raised(lambda: output.backward(torch.ones(4, 4)))


@row
def a_retained_graph_can_be_used_again(compile: Compile) -> Any:
    (a,) = weights("a")
    output = compile(lambda x: (x @ a).exp().sum())(torch.ones(2, 4))
    output.backward(retain_graph=True)
    output.backward()
    return kind(a.grad)


@row
def a_second_derivative_is_refused(compile: Compile) -> Any:
    (a,) = weights("a")
    (gradient,) = torch.autograd.grad(compile(lambda: (a * a).sum() * 1)(), a, create_graph=True)
    return gradient.requires_grad, raised(gradient.sum().backward)


@row
def only_some_gradients_can_be_asked_for(compile: Compile) -> Any:
    a, b = weights("a", "b")
    output = compile(lambda x: (x @ a) @ b)(torch.ones(2, 4))
    return [kind(gradient) for gradient in torch.autograd.grad(output.sum(), [b])], a.grad is None


# ---------------------------------------------------------------- properties of outputs


def facts(output: torch.Tensor) -> Any:
    return (output.dtype, tuple(output.shape), output.stride(), output.requires_grad, output.is_leaf, kind(output))


@row
def outputs_have_the_strides_and_the_memory_format(compile: Compile) -> Any:
    x = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0)).to(memory_format=torch.channels_last)
    return [facts(output) for output in compile(lambda x: (x * 2, x.transpose(1, 3) + 1, x.contiguous()))(x)]


@row
def an_input_that_is_returned_is_that_very_tensor(compile: Compile) -> Any:
    (a,) = weights("a")
    x = a * 1
    outputs = compile(lambda x: (x, x * 2))(x)
    return outputs[0] is x, facts(outputs[1])


@row
def a_view_of_an_input_is_one_to_autograd(compile: Compile) -> Any:
    (a,) = weights("a")
    x = a * 1
    view, _ = compile(lambda x: (x[1:], x * 2))(x)
    view.mul_(3)
    x.sum().backward()
    return view._base is x, kind(x), kind(a.grad)


@row
def views_of_one_intermediate_stay_views_of_one_tensor(compile: Compile) -> Any:
    (a,) = weights("a")
    flat, first = compile(lambda: ((base := a * 2).view(-1), base[0]))()
    flat.mul_(3)
    first.sum().backward()
    return kind(flat), kind(first), kind(a.grad)


@row
def an_output_can_be_changed_in_place(compile: Compile) -> Any:
    (a,) = weights("a")
    output = compile(lambda x: (x @ a).view(-1))(torch.ones(2, 4))
    output[0] = 0.0
    output.add_(1)
    output.square().sum().backward()
    return kind(output), kind(a.grad)


@row
def an_output_that_its_operator_keeps_can_be_changed_in_place(compile: Compile) -> Any:
    (a,) = weights("a")
    output = compile(lambda x: (x @ a).relu())(torch.ones(2, 4))
    output.mul_(0.5)
    output.sum().backward()
    return kind(output), kind(a.grad)


@row
def parts_of_a_chunk_can_be_changed_in_place(compile: Compile) -> Any:
    (a,) = weights("a")
    left, right = compile(lambda: (a * 2).chunk(2))()
    left.add_(1)
    (left.sum() + right.square().sum()).backward()
    return kind(left), kind(a.grad)


@row
def one_tensor_returned_twice_is_one(compile: Compile) -> Any:
    (a,) = weights("a")
    left, right = compile(lambda: ((out := a * 2), out))()
    (left + right).sum().backward()
    return left.data_ptr() == right.data_ptr(), kind(a.grad)


@row
def a_detached_output_shares_memory_and_has_no_history(compile: Compile) -> Any:
    (a,) = weights("a")
    output, detached = compile(lambda: ((out := a * 2), out.detach()))()
    return output.data_ptr() == detached.data_ptr(), facts(output), facts(detached)


# ---------------------------------------------------------------- tensors that a graph changes


@row
def an_input_that_is_changed_has_the_history_of_the_change(compile: Compile) -> Any:
    a, b = weights("a", "b")
    x = b * 1

    def change(x: torch.Tensor) -> torch.Tensor:
        # The example is not mul_, because plain torch.compile saves the input of mul_ for the backward and would refuse
        # the change.
        x.add_(a)
        return x.exp()

    output = compile(change)(x)
    output.sum().backward(retain_graph=True)
    x.sum().backward()
    return kind(x), kind(a.grad), kind(b.grad), x._version > 0


@row
def a_buffer_takes_on_the_history_of_what_is_written_to_it(compile: Compile) -> Any:
    (a,) = weights("a")
    buffer = torch.zeros(4, 4)

    def change(x: torch.Tensor) -> torch.Tensor:
        buffer.copy_(x @ a)
        return x + 1

    compile(change)(torch.ones(4, 4))
    buffer.sum().backward()
    return buffer.requires_grad, kind(buffer), kind(a.grad)


@row
def statistics_are_there_after_the_forward(compile: Compile) -> Any:
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(4)
    compile(norm)(torch.randn(8, 4))
    return kind(norm.running_mean), kind(norm.num_batches_tracked), norm.running_mean._version > 0


@row
def a_change_without_gradients_is_seen_by_the_version(compile: Compile) -> Any:
    a, b = weights("a", "b")

    def change(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            b.add_(1)
        return x @ a

    saved = (b * b).sum()
    compile(change)(torch.ones(2, 4))
    return raised(saved.backward)[0], kind(b)


@row
def a_view_that_is_changed_leaves_its_base_the_other_gradients(compile: Compile) -> Any:
    a, b = weights("a", "b")
    state = torch.zeros(2, 4)
    add = compile(lambda row, w: row.add_(w[0]) * 1)
    add(state[0], a)
    add(state[1], a)
    base = b * 1
    compile(lambda x: x.mul_(3) * 1)(base[:2])
    (state.sum() + base.sum()).backward()
    return kind(a.grad), kind(b.grad)


@row
def inputs_over_one_memory_have_the_gradients_of_a_change(compile: Compile) -> Any:
    (a,) = weights("a")
    x = a * 1

    def change(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.mul_(2.0)
        return x.sin()

    compile(change)(x, x[0]).sum().backward()
    return kind(a.grad)


@row
def views_that_are_made_in_place_require_gradients(compile: Compile) -> Any:
    (a,) = weights("a")
    output = compile(lambda: (a * 2).unsqueeze_(0)[0])()
    output.sum().backward()
    return output.requires_grad, kind(a.grad)


@row
def gradients_that_a_graph_switches_on_are_there(compile: Compile) -> Any:
    (a,) = weights("a")

    def enables() -> torch.Tensor:
        with torch.enable_grad():
            return (a * 2).view(-1)

    with torch.no_grad():
        output = compile(enables)()
    return output.requires_grad


@row
def a_batch_norm_by_keywords(compile: Compile) -> Any:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    mean, var = torch.zeros(4), torch.ones(4)
    norm = torch.nn.functional.batch_norm
    return kind(compile(lambda x: norm(x, running_mean=mean, running_var=var, training=True))(x)), kind(mean)


# Modules that change an input of the graph in place. Hardswish, Mish, SiLU and Threshold are not here, because plain
# torch.compile refuses their backward.
IN_PLACE = [
    torch.nn.CELU(inplace=True),
    torch.nn.Dropout(0.0, inplace=True),
    torch.nn.ELU(inplace=True),
    torch.nn.Hardsigmoid(inplace=True),
    torch.nn.Hardtanh(inplace=True),
    torch.nn.LeakyReLU(0.2, inplace=True),
    torch.nn.RReLU(inplace=True).eval(),
    torch.nn.ReLU(inplace=True),
    torch.nn.ReLU6(inplace=True),
    torch.nn.SELU(inplace=True),
]


def _in_place(of: Callable[[torch.nn.Module], Callable[..., Any]], compile: Compile) -> Any:
    """Run each module of IN_PLACE. Returns the module's output, its changed input, and the gradient of a weight before
    the module.
    """
    found: list[Any] = []
    for module in IN_PLACE:
        (a,) = weights("a")
        x = a * 1
        output = compile(of(module))(x)
        (output.sum() + x.sum()).backward()
        found += [kind(output), kind(x), kind(a.grad)]
    return found


@row
def modules_that_work_in_place_change_their_input(compile: Compile) -> Any:
    return _in_place(lambda module: lambda x: module(x) * 2, compile)


@row
def an_input_beside_what_changes_it_in_place(compile: Compile) -> Any:
    """A block of a U-Net computes ``cat([x, module(x)])``. If the module works in place, it also changes ``x``."""
    return _in_place(lambda module: lambda x: torch.cat([x, module(x) @ torch.ones(4, 4)]), compile)


@row
def outputs_that_a_module_changes_in_place(compile: Compile) -> Any:
    """A feature extractor returns the output of each layer, and the next layer changes that output in place."""
    (a,) = weights("a")

    def features(x: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for module in IN_PLACE:
            found += [x := x @ a, x := module(x)]
        return found

    found = compile(features)(torch.ones(2, 4))
    sum(feature.sum() for feature in found).backward()
    return [*map(kind, found), kind(a.grad)]


@row
def an_operator_by_its_overload_changes_inputs_over_one_memory(compile: Compile) -> Any:
    (a,) = weights("a")
    base = a * 1

    def change(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch.ops.aten.mul_.Tensor(x, 3.0)
        torch.ops.aten.add_(x, 1.0)
        return (x * y[:2]).sum()

    (compile(change)(base[:2], base[1:]) + base.sum()).backward()
    return kind(base), kind(a.grad)


@row
def an_operator_by_its_overload_changes_its_inputs_shape(compile: Compile) -> Any:
    (a,) = weights("a")
    x = (a * 1)[:2].clone()
    compile(lambda x: torch.ops.aten.t_.default(x) * 2)(x).sum().backward()
    return tuple(x.shape), kind(a.grad)


@row
def a_batch_norm_by_its_overload(compile: Compile) -> Any:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    mean, var = torch.zeros(4), torch.ones(4)
    norm = torch.ops.aten.batch_norm.default
    output = compile(lambda x: norm(x, None, None, mean, var, True, 0.1, 1e-5, False))(x)
    with torch.no_grad():
        mean.add_(1)
    output.pow(2).sum().backward()
    return kind(output), kind(mean), kind(x.grad)


# ---------------------------------------------------------------- torch's modes


@row
def weights_that_change_within_autocast_are_cast_again(compile: Compile) -> Any:
    """A program may compare several checkpoints within one autocast region, and copy each into the same weights.

    Autocast's cache would not notice the change in place, and the results would come from the first checkpoint.
    """
    torch.manual_seed(0)
    layer, found = torch.nn.Linear(4, 4), []
    function = compile(layer)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for value in (0.0, 1.0, 2.0):
            layer.weight.fill_(value)
            found.append(kind(function(torch.ones(2, 4))))
    return found, torch.is_autocast_cache_enabled()


@row
def autocast_is_that_of_the_forward(compile: Compile) -> Any:
    (a,) = weights("a")
    with torch.autocast("cpu", torch.bfloat16):
        output = compile(lambda x: x @ a)(torch.ones(2, 4))
    output.float().sum().backward()
    return output.dtype, a.grad is not None and a.grad.dtype


@row
def without_gradients_there_is_no_history(compile: Compile) -> Any:
    (a,) = weights("a")
    with torch.no_grad():
        return facts(compile(lambda x: x @ a)(torch.ones(2, 4)))


@row
def inference_mode_gives_tensors_of_inference(compile: Compile) -> Any:
    (a,) = weights("a")
    with torch.inference_mode():
        output = compile(lambda x: x @ a)(torch.ones(2, 4))
    return output.is_inference(), output.requires_grad


@row
def the_grad_mode_that_a_graph_leaves_is_left(compile: Compile) -> Any:
    (a,) = weights("a")

    def leaves(x: torch.Tensor) -> torch.Tensor:
        output = x @ a
        torch.set_grad_enabled(False)
        return output

    try:
        output = compile(leaves)(torch.ones(2, 4))
        return torch.is_grad_enabled(), output.requires_grad
    finally:
        torch.set_grad_enabled(True)


# ---------------------------------------------------------------- surroundings of a call


@row
def a_checkpoint_outside_of_it_computes_it_again(compile: Compile) -> Any:
    (a,) = weights("a")
    function = compile(lambda x: (x @ a).tanh())
    output = checkpoint(function, torch.ones(2, 4, requires_grad=True), use_reentrant=False)
    output.sum().backward()
    return kind(a.grad)


@row
def hooks_on_saved_tensors_are_called(compile: Compile) -> Any:
    (a,) = weights("a")
    packed: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(1)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = compile(lambda x: (x @ a).tanh())(torch.ones(2, 4))
    output.sum().backward()
    return bool(packed), kind(a.grad)


@row
def an_error_in_its_middle_leaves_the_modes_of_the_program(compile: Compile) -> Any:
    (a,) = weights("a")
    attention = torch.nn.functional.scaled_dot_product_attention

    def function(at: torch.Tensor) -> torch.Tensor:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), torch.no_grad():
            rows = torch.nn.functional.embedding(at, a)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rows = torch.nn.functional.embedding(at + 3, a) + rows
        return attention(rows[None], rows[None], rows[None])

    compiled = compile(function)
    modes_after = []
    for at in (0, 1, 9, 0):
        # Only the fact of an exception is compared, because the types of the exceptions differ.
        failed = raised(lambda at=at: compiled(torch.tensor([at])))[0] != "nothing"
        modes_after.append(
            (failed, torch.is_grad_enabled(), torch.backends.cuda.flash_sdp_enabled(), torch.is_autocast_enabled("cpu"))
        )
    return modes_after


@row
def an_error_in_its_middle_leaves_no_transform(compile: Compile) -> Any:
    (a,) = weights("a")

    def function(at: torch.Tensor) -> torch.Tensor:
        forward = torch.func.jvp(lambda x: torch.nn.functional.embedding(at, x).tanh(), (a,), (a,))[1]
        return forward.sum() + torch.func.grad(lambda x: torch.nn.functional.embedding(at, x).sum())(a).sum()

    compiled = compile(function)
    results = []
    for number in (0, 1, 9, 0):
        failed = raised(lambda number=number: compiled(torch.tensor([number])))[0] != "nothing"
        plain = torch.func.jvp(torch.sin, (a,), (a,))  # raises if the failed call left a level of forward mode open
        results.append((failed, torch._C._functorch.get_dynamic_layer_stack_depth(), kind(plain[1])))
    return results


@row
def an_error_that_the_program_catches_is_printed_by_nobody(compile: Compile) -> Any:
    compiled = compile(lambda x, at: x[at] * 5)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        failed = raised(lambda: compiled(torch.ones(3), torch.tensor([9])))[0] != "nothing"
    return failed, said.getvalue()


@row
def the_data_of_a_parameter_are_assigned(compile: Compile) -> Any:
    (a,) = weights("a")

    def function(x: torch.Tensor) -> torch.Tensor:
        a.data = x * 2
        return a.sin()

    with torch.no_grad():
        output = compile(function)(torch.ones_like(a))
    return output, a.detach(), a.requires_grad


@row
def an_error_in_a_hook_of_the_backward_is_the_programs(compile: Compile) -> Any:
    (a,) = weights("a")

    def fails(gradient: torch.Tensor) -> None:
        raise KeyError("mine")

    output = compile(lambda x: (x @ a).tanh())(torch.ones(2, 4))
    output.register_hook(fails)
    return raised(output.sum().backward), kind(a.grad)


@pytest.fixture(scope="module")
def here() -> Iterator[ThisProcess]:
    """Starts a session without compiles. A normal client would compile a graph whose eager run raises."""
    with (
        deaf_daemon(PRECOMPILED_WAIT_S="0.01") as process,
        mock.patch.object(submit, "compile_inline", lambda *_: None),
    ):
        yield process


# In `make test`, the row `outputs_that_a_module_changes_in_place` runs the same ten modules.
OF_TEN_MODULES = ("modules_that_work_in_place_change_their_input", "an_input_beside_what_changes_it_in_place")
EACH_ROW = [
    pytest.param(name, marks=[pytest.mark.integration] if name in OF_TEN_MODULES else [], id=name) for name in ROWS
]


@pytest.mark.parametrize("name", EACH_ROW)
def test_stand_in_behaves_as_plain_torch_compile(name: str, here: ThisProcess) -> None:
    run = ROWS[name]
    with contenders.settings(eagers_random_numbers=True):
        wanted = run(lambda function: torch.compile(function, backend=contenders.compiled))
    torch._dynamo.reset()
    before = len(here.reports())
    found = run(lambda function: torch.compile(function, backend="precompiled"))
    states = [graph.state for graph in here.reports()[before:]]
    assert states and set(states) == {"pending"}, states
    torch.testing.assert_close(flat(found), flat(wanted))
    same(found, wanted)


def test_outputs_with_symbolic_sizes_have_the_marks_of_compiled_code(here: ThisProcess) -> None:
    """Dynamo reads marks on an output to decide which sizes of the next graph are dynamic.

    If the marks on the stand-in's outputs differed from those of compiled code, the swap would change the next graph.
    """

    def marked(backend: Any) -> list[dict[str, Any]]:
        torch._dynamo.reset()
        outputs = torch.compile(lambda x: (x.sin(), x.sum(), x.t()), backend=backend, dynamic=True)(torch.ones(5, 3))
        return [{key: value for key, value in vars(one).items() if "dynamic" in key} for one in outputs]

    found = marked("precompiled")
    assert found == marked(contenders.compiled) and [set(*one.values()) for one in found] == [{0, 1}, set(), {0, 1}]


def test_stand_in_gives_dynamo_no_frames_to_trace(here: ThisProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backward within a compiled function, as in Keras, breaks the graph, and Dynamo traces Python code of the
    backward. Dynamo must not trace the stand-in's own code.
    """
    seen: list[str] = []
    original = convert_frame.has_tensor_in_frame

    def has_tensor_in_frame(frame: Any) -> bool:
        seen.append(frame.f_code.co_filename)
        return original(frame)

    monkeypatch.setattr(convert_frame, "has_tensor_in_frame", has_tensor_in_frame)
    a = torch.randn(4, 4, requires_grad=True)

    def step(x: torch.Tensor, create_graph: bool) -> None:
        x.add_(1)
        torch.sigmoid(x @ a).sum().backward(create_graph=create_graph)

    for create_graph in (False, True):
        torch.compile(step, backend="precompiled")(torch.ones(4, 4, requires_grad=True) * 1, create_graph)
    assert __file__ in seen
    assert [path for path in seen if Path(path).is_relative_to(Path(autograd_edges.__file__).parents[1])] == []


def flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in flat(item)] if isinstance(value, (list, tuple)) else []


def same(left: Any, right: Any) -> None:
    """Check that two results are equal in everything except their tensors."""
    assert type(left) is type(right), (left, right)
    if isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for pair in zip(left, right, strict=True):
            same(*pair)
    elif not isinstance(left, torch.Tensor):
        assert left == right
