"""Tests that a graph is named after the user's function from which Dynamo traced it."""

from __future__ import annotations

import sys
import warnings

import torch
from support_session import this_process

X = torch.randn(2, 4)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


def breaks(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    torch._dynamo.graph_break()
    return y + 1


def names(function: object) -> list[str]:
    with this_process() as here, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        here.call(function, X)  # type: ignore[arg-type]
        return [graph.name.partition(" ")[0] for graph in here.reports()]


def test_graph_is_named_after_its_function() -> None:
    def local(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    # Code objects have qualified names since Python 3.11.
    assert names(Net()) == ["Net.forward" if sys.version_info >= (3, 11) else "forward"]
    assert names(local) == ["local"]
    assert names(breaks) == ["breaks", "breaks"]


def test_graph_of_a_torch_module_is_named_after_its_class() -> None:
    assert names(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())) == ["Sequential"]
