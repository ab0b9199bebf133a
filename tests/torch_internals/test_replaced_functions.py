"""Tests that a graph is refused if it reaches a function of torch that the program has replaced."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from support_graphs import captured

from precompiled.core.errors import Bypass
from precompiled.packages import requirements
from precompiled.packages.describe.errors import Mismatch
from precompiled.torch_internals.graph import replaced_functions

X = torch.ones(4, 4)
RELU, LAYER_NORM, CROSS_ENTROPY = torch.relu, torch.layer_norm, torch._C._nn.cross_entropy_loss


def mine(*args: Any, **kwargs: Any) -> Any:
    return torch.sigmoid(args[0])


REACHED = {
    "a function of C that F.relu calls": (torch, "relu", F.relu),
    "another one of torch's": (torch, "relu_", lambda x: F.relu(x * 1, inplace=True)),
    "a function of C that F.layer_norm calls": (torch, "layer_norm", lambda x: F.layer_norm(x, (4,))),
    "a function of torch._C._nn": (torch._C._nn, "mse_loss", lambda x: F.mse_loss(x, x + 1)),
    "a method": (torch.Tensor, "relu", lambda x: (x * 1).relu()),
    "an operator": (torch.Tensor, "__matmul__", lambda x: x @ x),
    "through two functions of torch": (torch, "softmax", F.gumbel_softmax),
}


def test_unchanged_torch_has_no_replaced_functions() -> None:
    assert replaced_functions.replaced_functions() == {}


@pytest.mark.parametrize("name", REACHED)
@pytest.mark.reason("user-function")
def test_a_graph_that_reaches_a_replaced_function_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, function = REACHED[name]
    monkeypatch.setattr(owner, attribute, mine)
    assert [place.rpartition(".")[2] for place in replaced_functions.replaced_functions()] == [attribute]
    with pytest.raises(Bypass, match=f"the program has replaced .*{attribute}") as refused:
        captured(function, X)
    assert refused.value.code == "user-function"


def test_reachable_functions_are_recomputed_after_a_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    """F.lp_pool2d calls F.relu, and F.relu calls torch.relu_. A replaced F.relu hides torch.relu_.

    If the result for the replaced F.relu were cached, a later replacement of torch.relu_ would be missed.
    """
    for owner, attribute in ((F, "relu"), (torch, "relu_")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, attribute, mine)
            with pytest.raises(Bypass, match=f"has replaced .*{attribute}, "):
                replaced_functions.refuse_target(F.lp_pool2d, replaced_functions.replaced_functions())


def test_attribute_added_to_torch_is_not_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    added = mock.Mock()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "an_attribute_of_the_programs", added, raising=False)
        assert replaced_functions.replaced_functions() == {}
    gone = weakref.ref(added)
    del added
    gc.collect()
    assert gone() is None


def test_graph_that_does_not_reach_a_replacement_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "layer_norm", mine)
    captured(lambda x: F.relu(x) @ x, X)


@pytest.mark.parametrize("value", [torch.sigmoid, F.gelu, mine], ids=["of C", "of torch's", "of the program's"])
def test_any_replacement_of_a_function_is_detected(value: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "relu", value)
    assert replaced_functions.replaced_functions() == {"torch.relu": value}


def counted() -> Callable[..., Any]:
    calls: list[Any] = []

    def replacement(*args: Any) -> Any:
        calls.append(args)
        return torch.sigmoid(args[0])

    return replacement


@pytest.mark.parametrize("make", [counted, mock.Mock, mock.MagicMock])
def test_state_of_a_replacement_does_not_invalidate_packages(
    make: Callable[[], Callable[..., Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replacement may have state that differs in each process: for example, a counter of calls.

    A package only requires that the same place has a replacement with the same code.
    """
    usual, found = requirements.requirements({}), []
    for calls in range(2):
        monkeypatch.setattr(torch, "relu", make())
        for _ in range(calls):
            torch.relu(X)
        found.append(requirements.requirements({}))
    requirements.check(*found)
    with pytest.raises(Mismatch, match="replaced different functions of torch"):
        requirements.check(usual, found[0])
