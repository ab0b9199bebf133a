"""Tests of the key: equal for equal compiles, and different for everything that changes the compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
import torch._functorch.config
import torch._inductor.config
import torch.fx.experimental._config
from support_graphs import captured, captures, key_of
from torch.utils.checkpoint import checkpoint

from precompiled.core.errors import Bypass
from precompiled.graph import key

X, Y = torch.randn(4, 6), torch.randn(4, 6)
W = torch.randn(6, 6)


def subtract(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    scaled = x * 2
    return scaled - y


# ``subtract`` with different names, and with two more lines above it, as after an edit.


def renamed(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    # a comment
    twice = left * 2

    return twice - right


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


def test_names_and_lines_are_not_in_the_key() -> None:
    assert key_of(subtract, X, Y) == key_of(renamed, X, Y)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.skipif(torch.cuda.is_available(), reason="autocast of a GPU warns only where there is none")
def test_autocast_for_a_gpu_does_not_make_a_gpu_graph(enabled: bool) -> None:
    def normed(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", enabled=enabled):
            return (x @ W).sin()

    assert captured(normed, X).program.device == "cpu"


def test_a_key_is_the_same_each_time() -> None:
    assert key_of(subtract, X, Y) == key_of(subtract, X, Y)
    assert key.key(captured(subtract, X, Y).program.sections) == key_of(subtract, X, Y)


def test_values_are_not_in_the_key() -> None:
    assert key_of(subtract, X, Y) == key_of(subtract, X + 1, Y * 3)


def test_two_layers_of_a_model_share_a_key() -> None:
    first, second = Layer(), Layer()
    assert key_of(first, X) == key_of(second, X)
    # Equal layers of one model share a key, too, although their parameters have different names and sources.
    net = torch.nn.ModuleDict({"a": first, "b": second})
    assert key_of(net["a"], X) == key_of(net["b"], X)


def test_equal_graphs_around_a_graph_break_share_a_key() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        x = x.sin() + 1
        torch._dynamo.graph_break()
        return x.sin() + 1

    first, second = captures(broken, X)
    assert first.key == second.key


@contextmanager
def restored(set_to: Callable[[Any], None], value: Any, before: Any) -> Iterator[None]:
    set_to(value)
    try:
        yield
    finally:
        set_to(before)


def deterministic() -> AbstractContextManager[None]:
    return restored(torch.use_deterministic_algorithms, True, False)


def one_thread_more() -> AbstractContextManager[None]:
    threads = torch.get_num_threads()
    return restored(torch.set_num_threads, threads + 1, threads)


def with_options(**options: Any) -> dict[str, Any]:
    return {"options": options}


def linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).relu()


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {}
_plain = (lambda x: x * 2, X)


def differ(name: str, left: Callable[[], str], right: Callable[[], str]) -> None:
    CHANGES[name] = (left, right)


def under(context: Callable[[], AbstractContextManager[Any]]) -> Callable[[], str]:
    def find() -> str:
        with context():
            return key_of(linear, X, W)

    return find


BASE = under(nullcontext)
differ("a constant", lambda: key_of(lambda x: x * 2, X), lambda: key_of(lambda x: x * 3, X))
differ("a constant's type", lambda: key_of(lambda x: x * 2, X), lambda: key_of(lambda x: x * 2.0, X))
differ(
    "the order of operations", lambda: key_of(lambda x: x.sin().cos(), X), lambda: key_of(lambda x: x.cos().sin(), X)
)
differ(
    "swapped inputs of one shape",
    lambda: key_of(lambda x, y: x - y, X, Y),
    lambda: key_of(lambda x, y: y * 1 - x, X, Y),
)
differ("one input twice", lambda: key_of(lambda x, y: x - y, X, Y), lambda: key_of(lambda x, y: x - y, X, X))
differ(
    "which output is returned", lambda: key_of(lambda x: (x + 1, x + 2), X), lambda: key_of(lambda x: (x + 2, x + 1), X)
)
differ(
    "inside of a checkpoint",
    lambda: key_of(lambda x: checkpoint(torch.sin, x, use_reentrant=False), X),
    lambda: key_of(lambda x: checkpoint(torch.cos, x, use_reentrant=False), X),
)
differ(
    "a checkpoint",
    lambda: key_of(lambda x: checkpoint(torch.sin, x, use_reentrant=False), X),
    lambda: key_of(torch.sin, X),
)
differ("dtype", BASE, lambda: key_of(linear, X.double(), W.double()))
differ("shape", BASE, lambda: key_of(linear, X[:3], W))
differ("strides", BASE, lambda: key_of(linear, X, W.T))
differ(
    "storage offset",
    lambda: key_of(lambda x: x * 2, torch.randn(9)[1:]),
    lambda: key_of(lambda x: x * 2, torch.randn(8)),
)
differ("requires_grad", BASE, lambda: key_of(linear, X, W.clone().requires_grad_()))
differ(
    "a parameter",
    lambda: key_of(linear, X, W.clone().requires_grad_()),
    lambda: key_of(linear, X, torch.nn.Parameter(W.clone())),
)
differ(
    "a leaf",
    lambda: key_of(linear, X, W.clone().requires_grad_()),
    lambda: key_of(linear, X, W.clone().requires_grad_() * 1),
)
differ("symbolic sizes", BASE, lambda: key_of(linear, X, W, dynamic=True))
differ("grad mode", BASE, under(torch.no_grad))
differ("autocast", BASE, under(lambda: torch.autocast("cpu", torch.bfloat16)))
differ(
    "autocast's dtype",
    under(lambda: torch.autocast("cpu", torch.bfloat16)),
    under(lambda: torch.autocast("cpu", torch.float16)),
)
differ("deterministic algorithms", BASE, under(deterministic))
differ("threads", BASE, under(one_thread_more))
differ("default dtype", BASE, under(lambda: restored(torch.set_default_dtype, torch.float64, torch.float32)))
differ("matmul precision", BASE, under(lambda: restored(torch.set_float32_matmul_precision, "medium", "highest")))
differ("an attention backend", BASE, under(lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)))
differ("Inductor's configuration", BASE, under(lambda: torch._inductor.config.patch(max_fusion_size=7)))
differ("functorch's configuration", BASE, under(lambda: torch._functorch.config.patch(activation_memory_budget=0.5)))
differ("sizes' configuration", BASE, under(lambda: torch.fx.experimental._config.patch(backed_size_oblivious=True)))
for name, value in (
    # Inductor generates different code for AOTInductor's debug options: torch/_inductor/codegen/wrapper.py and
    # cpp_builder.py.
    ("debug_intermediate_value_printer", "2"),
    ("debug_compile", True),
    ("debug_symbols", True),
):
    aot = {f"aot_inductor.{name}": value}
    differ(f"AOTInductor's {name}", BASE, under(lambda aot=aot: torch._inductor.config.patch(aot)))
for name, value in (
    # torch omits these options from its saved configuration, although they affect a compile.
    ("activation_memory_budget_solver", "greedy"),
    ("activation_memory_budget_runtime_estimator", "testing"),
    ("joint_custom_pass", torch.fx.symbolic_trace),
):
    left_out = {name: value}
    differ(f"functorch's {name}", BASE, under(lambda left_out=left_out: torch._functorch.config.patch(left_out)))
differ("options=", BASE, lambda: key_of(linear, X, W, options={"max_fusion_size": 7}))
differ("a variable that Inductor reads", BASE, under(lambda: _variable("TORCHINDUCTOR_SOMETHING", "1")))
differ("the compiler", BASE, under(lambda: _variable("CXX", "no-such-compiler")))


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(name, value)
        yield


@pytest.mark.parametrize("what", CHANGES)
def test_change_that_affects_the_compile_changes_the_key(what: str) -> None:
    left, right = CHANGES[what]
    assert left() != right()


SAME = {
    # Dynamo leaves inference mode during a compile, so backends and the compiled code see grad mode off.
    "inference mode, beside no_grad": under(torch.inference_mode),
    "options= that repeat the configuration": lambda: key_of(
        linear, X, W, options={"max_fusion_size": torch._inductor.config.max_fusion_size}
    ),
    "how much is compiled at once": under(lambda: torch._inductor.config.patch(compile_threads=3)),
    "where Inductor's cache is": under(lambda: _variable("TORCHINDUCTOR_CACHE_DIR", "/nowhere")),
    "a variable that is none of ours": under(lambda: _variable("SOMETHING_ELSE", "1")),
}


@pytest.mark.parametrize("what", SAME)
def test_change_that_does_not_affect_the_compile_keeps_the_key(what: str) -> None:
    base = under(torch.no_grad) if "no_grad" in what else BASE
    assert SAME[what]() == base()


def test_one_key_serves_all_values_of_a_symbolic_size() -> None:
    small, large = (torch.randn(size, 6) for size in (4, 9))
    for tensor in (small, large):
        torch._dynamo.mark_dynamic(tensor, 0)
    first, second = captured(linear, small, W), captured(linear, large, W)
    assert first.key == second.key
    assert first.program.hints != second.program.hints
    # The program for the worker contains a value of the symbolic size, which the worker needs. The key contains no
    # value.
    assert first.program.to_bytes() != second.program.to_bytes()


def test_the_range_of_a_symbolic_size_is_in_the_key() -> None:
    tensors = [torch.randn(8, 6) for _ in range(2)]
    torch._dynamo.mark_dynamic(tensors[0], 0, min=4, max=64)
    torch._dynamo.mark_dynamic(tensors[1], 0)
    assert key_of(linear, tensors[0], W) != key_of(linear, tensors[1], W)


def test_components_explain_a_miss() -> None:
    left = key.components(captured(linear, X, W).program.to_bytes())
    right = key.components(captured(linear, X.double(), W.double()).program.to_bytes())
    assert {name for name in left if left[name] != right[name]} == {"inputs"}
    assert "float64" in right["inputs"]


# ---------------------------------------------------------------- configuration that is refused


REFUSED = {
    "fx-wrapper": {"fx_wrapper": True},
    "caches-disabled": {"force_disable_caches": True},
    "custom-pass": {"post_grad_custom_post_pass": lambda graph: None},
}


@pytest.mark.parametrize("code", REFUSED)
@pytest.mark.parametrize("where", ["options", "configuration"])
def test_unsupported_configuration_is_refused(code: str, where: str) -> None:
    settings = REFUSED[code]
    with pytest.raises(Bypass) as refused:
        if where == "options":
            captured(linear, X, W, options=settings)
        else:
            with torch._inductor.config.patch(settings):
                captured(linear, X, W)
    assert refused.value.code == code


def test_option_that_is_not_plain_data_is_refused() -> None:
    with pytest.raises(Bypass) as refused:
        captured(linear, X, W, options={"max_fusion_size": object()})
    assert refused.value.code == "unpicklable-option"
