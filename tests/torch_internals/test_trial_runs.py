"""Tests of trial runs: they find wrong outputs, changed inputs and gradients, and name graphs that they cannot run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from precompiled.core import memory
from precompiled.torch_internals.eager import undo_effects
from precompiled.torch_internals.eager.stand_in import StandIn
from precompiled.torch_internals.eager.trial_runs import Trial

X = torch.linspace(-2, 2, 12).view(3, 4)
W = torch.linspace(0.1, 1.7, 16).view(4, 4)


def trial(function: Callable[..., Any], *args: Any) -> Trial:
    return Trial(StandIn(torch.fx.symbolic_trace(function)), args)


def differences(function: Callable[..., Any], compiled: Callable[..., Any], *args: Any) -> list[str]:
    found = trial(function, *args)
    assert found.why_not() == ""
    return [one.what for one in found.differences(compiled)]


def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.gelu(x @ weight).softmax(-1)


def test_equal_code_has_no_differences() -> None:
    assert differences(layer, layer, X, W.clone().requires_grad_()) == []


def test_wrong_output_and_its_gradient_are_named() -> None:
    def wrong(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return layer(x, weight) * 1.01

    assert differences(layer, wrong, X, W) == ["output 0"]
    assert differences(layer, wrong, X, W.clone().requires_grad_()) == ["output 0", "the gradient of weight"]


class _WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 1.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_wrong_gradient_alone_is_found(dtype: torch.dtype) -> None:
    def wrong(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return layer(x, _WrongGradient.apply(weight))

    weight = W.to(dtype, copy=True).requires_grad_()
    expected = [] if dtype is torch.bfloat16 else ["the gradient of weight"]  # 1 % is rounding in bfloat16
    assert differences(layer, wrong, X.to(dtype), weight) == expected


def test_wrong_change_of_an_input_is_found_and_inputs_stay_unchanged() -> None:
    def changes(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        state.mul_(0.5).add_(x)
        return state * x

    def wrong(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        made = changes(state, x)
        state.add_(0.1)
        return made

    state = torch.ones(24)[6:18].view(3, 4)
    version = state._version
    assert differences(changes, wrong, state, X) == ["the changed input state"]
    assert torch.equal(state, torch.ones(3, 4)) and state._version == version


def test_gradient_of_a_changed_input_is_compared() -> None:
    def changes(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x.sin()

    given = X.clone().requires_grad_() * 1
    assert differences(changes, changes, given) == []
    assert differences(changes, lambda x: changes(_WrongGradient.apply(x)), given) == [
        "the changed input x",
        "the gradient of x",
    ]


def test_reference_is_float64_despite_conversions_in_the_graph() -> None:
    """Eager code rounds to bfloat16 twice. Code that does not round is also right, but only a reference without this
    rounding can show it.
    """

    def rounds(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (x.bfloat16().float() @ weight).to(torch.bfloat16).float()

    assert differences(rounds, lambda x, weight: x @ weight, X * 1.003, W) == []
    assert differences(rounds, lambda x, weight: x @ weight * 1.02, X * 1.003, W) == ["output 0"]


def test_trial_restores_the_grad_mode_and_random_state() -> None:
    def draws(x: torch.Tensor) -> torch.Tensor:
        torch.rand(3)
        torch.set_grad_enabled(False)
        return x * 2

    state = torch.get_rng_state()
    assert differences(lambda x: x * 2, draws, X) == []
    assert torch.equal(torch.get_rng_state(), state) and torch.is_grad_enabled()


@torch.library.custom_op("precompiled_tests::trial_doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.parametrize(
    ("function", "why_not"),
    [
        (F.dropout, "the graph draws random numbers"),
        (lambda x: torch.ops.precompiled_tests.trial_doubled(x + 0), "the graph calls a custom operator"),
        (lambda x: x.t_(), "the graph changes the metadata of a tensor in place"),
        (lambda x: F.dropout(x, training=False), ""),
        (lambda x: F.scaled_dot_product_attention(x, x, x), ""),
    ],
    ids=["dropout", "custom-op", "metadata", "dropout-in-evaluation", "attention"],
)
def test_graphs_that_cannot_be_compared(function: Callable[..., Any], why_not: str) -> None:
    assert trial(function, X[None, None]).why_not() == why_not


def test_calls_that_cannot_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    given, found = X.clone().requires_grad_(), []

    def ask(x: torch.Tensor) -> torch.Tensor:
        found.append(trial(lambda x: x.sin(), x).why_not())
        return x.sin()

    checkpoint(ask, given, use_reentrant=False)
    torch.vmap(ask)(X)
    with torch.device("cpu"):
        ask(X)
    with torch.autograd.detect_anomaly():
        ask(given)
    ask(torch.nn.Buffer(X) if hasattr(torch.nn, "Buffer") else X)
    ask(torch.masked.as_masked_tensor(X, X > 0))
    found.append(trial(lambda x: x.sin(), torch.empty(1).expand(1 << 30)).why_not())
    monkeypatch.setattr(undo_effects, "MAX_BYTES", 8)
    found.append(trial(lambda x: x.mul_(2), X.clone()).why_not())
    assert found == [
        "the call is in a checkpoint, or under other hooks on saved tensors",
        "the call is in a transform of torch.func",
        "the call is under a mode of torch, such as a default device",
        "the call is under detect_anomaly",
        "",
        "an input is not a plain tensor",
        "the graph has inputs of more than 2 GiB",
        "the graph changes inputs of more than 0 MiB",
    ]


def test_no_check_without_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check with little free memory could exhaust the memory, and Linux would end the program."""
    monkeypatch.setattr(memory, "available_bytes", memory.resident_bytes)
    assert "less memory is free" in trial(layer, X, W).why_not()
