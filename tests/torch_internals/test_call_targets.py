"""Tests that a graph's calls are encoded by name, and that other calls are refused.

A call has a name only if its target is torch's own code, and only if a lookup of the name returns the same object.
"""

from __future__ import annotations

import functools
import math
import operator
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import support_operators
import torch
import torch._numpy
import torch.nn.functional as F
import typing_extensions
from support_graphs import captured
from torch._dynamo import utils

from precompiled.core.errors import Bypass
from precompiled.torch_internals.graph import call_targets
from precompiled.torch_internals.user_code import custom_ops

X = torch.randn(4, 6)

TORCHS_OWN = {
    "torch.add": torch.add,
    "torch.nn.functional.relu": F.relu,
    "torch.nn.functional.max_pool2d": F.max_pool2d,  # a closure that boolean_dispatch creates
    "torch.nn.functional.scaled_dot_product_attention": F.scaled_dot_product_attention,
    "torch._C._nn.gelu": torch._C._nn.gelu,
    "torch._C._nn.linear": torch._C._nn.linear,
    "torch.special.erf": torch.special.erf,
    "torch.linalg.norm": torch.linalg.norm,
    "torch.fft.rfft": torch.fft.rfft,
    "torch.sym_max": torch.sym_max,
    "torch.ops.aten.add.Tensor": torch.ops.aten.add.Tensor,
    "torch.ops.aten.add": torch.ops.aten.add,
    "torch.amp.autocast_mode._enter_autocast": torch.amp.autocast_mode._enter_autocast,
    "operator.getitem": operator.getitem,
    "operator.matmul": operator.matmul,
    "operator.imul": operator.imul,
    "math.sqrt": math.sqrt,
    "builtins.abs": abs,
    "torch.Tensor.set_": torch.Tensor.set_,  # a method of a C type, without a module
    "torch.Tensor.__add__": torch._C.TensorBase.__add__,
    "str.join": str.join,
}


@pytest.mark.parametrize("target", TORCHS_OWN.values(), ids=TORCHS_OWN)
def test_name_is_decoded_to_the_same_object(target: Any) -> None:
    assert call_targets.decode(call_targets.encode(target)) is target


def test_nested_function_of_torch_is_recreated() -> None:
    """For ``parameter.data = value``, Dynamo (2.11, 2.13) writes a function nested in torch's code into the graph."""
    made: list[Any] = []

    def compiled(module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        made.extend(node.target for node in module.graph.nodes if node.op == "call_function")
        return module.forward

    def assigned(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        p.data = x * 2
        return p.sin()

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(assigned, backend=compiled)(torch.nn.Parameter(torch.ones(3)), torch.ones(3))
    assert len(made) > 1
    for target in made:
        again = call_targets.decode(call_targets.encode(target))
        assert again is target or again.__code__ == target.__code__


def test_nested_function_of_the_program_is_refused() -> None:
    def within(x: torch.Tensor) -> torch.Tensor:
        return x

    within.__module__, within.__qualname__ = "torch.nn.functional", "softsign.<locals>.within"
    assert refusal(within) == "user-function"


def refusal(target: Any) -> str:
    with pytest.raises(Bypass) as refused:
        call_targets.encode(target)
    return refused.value.code


def users_function(x: torch.Tensor) -> torch.Tensor:
    return x * 3


class UsersCallable:
    def __init__(self, replaced: Callable[..., Any]) -> None:
        functools.update_wrapper(self, replaced)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3


def test_function_of_the_user_is_refused() -> None:
    assert refusal(users_function) == "user-function"
    assert refusal(lambda x: x) == "user-function"
    assert refusal(functools.partial(torch.add, 1)) == "user-function"


def test_user_function_in_the_namespace_of_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "of_mine", users_function, raising=False)
    assert refusal(users_function) == "user-function"


@pytest.mark.parametrize("wrap", [lambda f: functools.wraps(f)(lambda x: x * 3), UsersCallable], ids=["wraps", "class"])
def test_patch_with_the_name_of_the_original_is_refused(
    monkeypatch: pytest.MonkeyPatch, wrap: Callable[[Any], Any]
) -> None:
    # In a worker the name leads to torch's own function, so the artifact would compute a different result.
    patch = wrap(F.softsign)
    assert (patch.__module__, patch.__qualname__) == ("torch.nn.functional", "softsign")
    monkeypatch.setattr(F, "softsign", patch)
    call_targets._resolve.cache_clear()
    assert refusal(patch) == "user-function"


@pytest.mark.parametrize("deprecated", [typing_extensions.deprecated, getattr(warnings, "deprecated", None)])
def test_deprecated_functions_of_torch_are_encoded_and_of_users_refused(
    monkeypatch: pytest.MonkeyPatch, deprecated: Any
) -> None:
    assert call_targets.decode(call_targets.encode(torch._check_is_size)) is torch._check_is_size
    if deprecated is None:
        pytest.skip("LOUD: this Python has no warnings.deprecated")
    patch = deprecated("use another")(functools.wraps(F.softsign)(lambda x: x * 3))
    monkeypatch.setattr(F, "softsign", patch)
    call_targets._resolve.cache_clear()
    assert refusal(patch) == "user-function"


@pytest.mark.parametrize(
    "wrapper",
    [
        utils.numpy_to_tensor_wrapper(torch._numpy.sin),
        utils.numpy_to_tensor_wrapper(torch._numpy.linalg.norm),
        utils.numpy_method_wrapper("reshape"),
        utils.numpy_operator_wrapper(operator.add),
    ],
    ids=lambda wrapper: wrapper.__name__,
)
def test_numpy_call_is_encoded_by_its_torch_function(wrapper: Any) -> None:
    made = call_targets.decode(call_targets.encode(wrapper))
    assert type(made) is type(wrapper) and vars(made) == vars(wrapper)


def test_patched_numpy_function_of_torch_is_refused() -> None:
    patch = functools.wraps(torch._numpy.sin)(lambda x: x * 3)
    assert refusal(utils.numpy_to_tensor_wrapper(patch)) == "user-function"
    assert refusal(utils.numpy_method_wrapper("of_mine")) == "user-function"
    assert refusal(utils.numpy_operator_wrapper(lambda a, b: a * 3)) == "user-function"


def _calls_silu(x: torch.Tensor) -> torch.Tensor:
    return F.silu(x)


def test_a_patched_torch_function_in_a_real_graph_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    patch = functools.wraps(F.silu)(lambda x: x * 3)
    monkeypatch.setattr(F, "silu", patch)
    call_targets._resolve.cache_clear()
    # Dynamo either keeps the patch as a call, which has no name, or traces through the patch and records a
    # multiplication.
    try:
        found = captured(_calls_silu, X)
    except Bypass as refused:
        assert refused.code == "user-function"
    else:
        assert '"silu"' not in found.program.sections["graph"]


def test_custom_op_is_encoded_with_its_module_and_source_digest() -> None:
    operator = torch.ops.precompiled_tests.doubled.default
    encoded = call_targets.encode(operator)
    kind, namespace, name, overload, module, digest, _kernels = encoded
    assert (kind, namespace, name, overload, module) == (
        "cop",
        "precompiled_tests",
        "doubled",
        "default",
        support_operators.__name__,
    )
    assert call_targets.encode(torch.ops.precompiled_tests.doubled) == encoded
    assert captured(support_operators.doubled, X).program.modules == {module: digest}
    assert call_targets.decode(encoded) is operator
    with pytest.raises(ValueError, match="differ from the capture"):
        call_targets.decode([*encoded[:5], "0" * 64, encoded[6]])


def test_library_op_is_encoded_with_its_fakes_module_and_its_kernels() -> None:
    operator = torch.ops.precompiled_tests_library.tripled.default
    before = call_targets.encode(operator)
    assert before[4] == support_operators.__name__ and before[6] == "Meta CPU"
    assert call_targets.decode(before) is operator
    # Workers do not import this test module, which registers the gradient. Code that workers compile would lack the
    # gradient.
    torch.library.register_autograd("precompiled_tests_library::tripled", lambda ctx, gradient: gradient * 3)
    assert "Autograd" in call_targets.encode(operator)[6]
    call_targets._decode.cache_clear()
    with pytest.raises(ValueError, match="but the program registers it for Meta CPU"):
        call_targets.decode(before)


def test_custom_ops_that_torch_defines_are_encoded() -> None:
    """A new version of torch may add operators in a new namespace (2.13 added torch_nn). Such operators need no change
    in this project.
    """
    definitions = custom_ops.custom_ops.OPDEFS.values()
    found = [op._opoverload for op in definitions if op._init_fn.__module__.startswith("torch.")]
    found = [op for op in found if op.namespace != "streams"]  # refused: test_events_of_streams_are_refused
    assert len(found) > 100
    for op in found:
        assert call_targets.decode(call_targets.encode(op)) is op


def test_custom_op_that_a_worker_cannot_import_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    library = torch.library.Library("precompiled_tests_bare", "DEF")
    library.define("opaque(Tensor x) -> Tensor")
    assert refusal(torch.ops.precompiled_tests_bare.opaque.default) == "custom-op"
    definition = custom_ops.custom_ops.OPDEFS["precompiled_tests::doubled"]
    before, _digest = custom_ops.defining_modules(torch.ops.precompiled_tests.doubled.default)
    monkeypatch.setattr(definition, "_abstract_fn", torch.Tensor.clone)  # a C method, which has no module
    assert custom_ops.defining_modules(torch.ops.precompiled_tests.doubled.default)[0] == before
    monkeypatch.setattr(definition._init_fn, "__module__", "__main__")
    with pytest.raises(Bypass) as refused:
        custom_ops.defining_modules(torch.ops.precompiled_tests.doubled.default)
    assert refused.value.code == "custom-op-in-main"


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_functional_collectives_are_encoded_and_others_refused() -> None:
    reduce = call_targets.encode(torch.ops._c10d_functional.all_reduce.default)
    assert (
        call_targets.is_collective(reduce)
        and call_targets.decode(reduce) is torch.ops._c10d_functional.all_reduce.default
    )
    assert not call_targets.is_collective(call_targets.encode(torch.ops.aten.mm.default))
    assert refusal(torch.ops.c10d.allreduce_.default) == "collective"


@pytest.mark.reason("marked-node")
def test_events_of_streams_are_refused() -> None:
    """An event is a number in a table of the process. In a worker, these numbers stand for different events or for
    none.
    """
    import torch._dynamo.variables.streams

    if not hasattr(torch.ops.streams, "record_event"):
        pytest.skip("NOT TESTED: this torch has no such operator")
    for name in (torch.ops.streams.record_event, torch.ops.streams.wait_event.default):
        with pytest.raises(Bypass, match="streams::") as refused:
            call_targets.encode(name)
        assert refused.value.code == "marked-node"


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_operator_with_a_group_name_counts_as_a_collective(one_rank: None) -> None:
    """Ranks must not mix eager and compiled runs of a custom collective such as vllm::all_reduce, because the ranks
    would hang.
    """
    encoded = call_targets.encode(torch.ops.precompiled_tests.of_a_group.default)
    assert call_targets.is_collective(encoded)
    assert not call_targets.is_collective(call_targets.encode(torch.ops.precompiled_tests.doubled.default))
    assert call_targets.is_collective(["cop", "precompiled_tests", "nowhere", "default", "a module", "", ""])
    theirs = captured(lambda x: torch.ops.precompiled_tests.of_a_group(x, "tp:0"), X).program
    assert "ranks" in theirs.no_stand_in and theirs.modes["groups"] == {}
    ours = torch.distributed.group.WORLD.group_name
    known = captured(lambda x: torch.ops.precompiled_tests.of_a_group(x, ours), X).program
    assert "ranks" in known.no_stand_in and known.modes["groups"] == {"precompiled-group-0": 1}
    assert known.groups == (ours,) and f'"{ours}"' not in known.sections["graph"]


def test_an_operator_with_effects_is_refused() -> None:
    assert refusal(torch.ops.higher_order.with_effects) == "higher-order-operator"


@pytest.mark.parametrize(
    "name",
    [["fn", "os", "system"], ["fn", "builtins_", "eval"], ["fn", "torchvision.ops", "nms"], ["pickle", "x"]],
    ids=str,
)
def test_name_outside_of_torch_is_not_looked_up(name: list[str]) -> None:
    with pytest.raises(ValueError, match=r"not a module of torch|unknown kind"):
        call_targets.decode(name)


def of_mine(a: Any, b: Any = None) -> Any:
    return torch.mul(a, 3)


PATCHED: dict[str, Callable[[torch.Tensor], Any]] = {
    "__matmul__": lambda x: x @ x.T,
    "__add__": lambda x: x + x,
    "__rsub__": lambda x: 1 - x,
    "__iadd__": lambda x: operator.iadd(x.clone(), 1),
    "__radd__": lambda x: operator.iadd(x.clone(), 1),
    "__and__": lambda x: operator.and_(x > 0, x < 1),
    "__gt__": lambda x: x > 1,
    "__truediv__": lambda x: x / 2,
    "__neg__": lambda x: -x,
    "__abs__": abs,
    "__pow__": lambda x: x**2,
    "__getitem__": lambda x: x[0],
}


@pytest.mark.parametrize("name", PATCHED)
def test_patched_tensor_operator_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The graph names only the operator (``+``, for example), so a worker would compile torch's own operator."""
    used = PATCHED[name]
    captured(used, X)
    monkeypatch.setattr(torch.Tensor, name, of_mine)
    with pytest.raises(Bypass, match=f"has replaced torch.Tensor.{name}") as refused:
        captured(used, X)
    assert refused.value.code == "user-function"
    captured(torch.sin, X)  # a graph that does not use the patched operator


def test_tensor_operator_replaced_by_another_of_torch_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.Tensor, "__add__", torch.Tensor.__mul__)
    with pytest.raises(Bypass, match=r"has replaced torch\.Tensor\.__add__"):
        captured(lambda x: x + x, X)


def test_patched_tensor_method_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A patched method may be served: Dynamo traces through the patch, so the graph does not name the method."""
    monkeypatch.setattr(torch.Tensor, "matmul", of_mine)
    found = captured(lambda x: x.matmul(x), X)
    assert [node.target for node in found.module.graph.nodes if node.op.startswith("call_")] == [torch.mul]
