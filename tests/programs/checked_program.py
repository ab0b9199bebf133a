"""A program that trains a model step by step and records all that it can observe.

Usage: checked_program.py NAME. Prints "@pending" after its first step, and waits until no graph is pending. NAME is a
function of this file. The JSON object has:

- ``seen``: what each step could observe (results, gradients, counts of hooks, random state, version counters)
- ``right``: whether each step's results equal those of the uncompiled model
- ``reports``: the state, source, reason, message and calls of each graph, and whether it was checked
"""

from __future__ import annotations

import copy
import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import precompiled

STEPS = 4
Case = tuple[nn.Module, tuple[torch.Tensor, ...]]


def training() -> Case:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    return model, (torch.randn(8, 16, requires_grad=True),)


class Function(nn.Module):
    """A module made of one function and of the modules that the function uses."""

    def __init__(self, function: Callable[..., Any], *modules: nn.Module) -> None:
        super().__init__()
        self.modules_ = nn.ModuleList(modules)
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args, *self.modules_)


def changed_input() -> Case:
    def function(x: torch.Tensor, state: torch.Tensor, linear: nn.Module) -> torch.Tensor:
        state.mul_(0.5).add_(x.detach().mean(0))
        return linear(x + state)

    return Function(function, nn.Linear(16, 16)), (torch.randn(8, 16, requires_grad=True), torch.randn(32)[8:24])


def changed_differentiable_input() -> Case:
    def function(x: torch.Tensor, linear: nn.Module) -> torch.Tensor:
        x.mul_(2)
        return linear(x)

    return Function(function, nn.Linear(16, 16)), (torch.randn(8, 16, requires_grad=True),)


def changed_buffer() -> Case:
    return nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8)), (torch.randn(8, 16, requires_grad=True),)


def views() -> Case:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sin()
        return x.view(-1), y.t(), y[2:], x

    return Function(function), (torch.randn(8, 16, requires_grad=True),)


def bfloat16() -> Case:
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64), nn.Softmax(-1))
    return model.bfloat16(), (torch.randn(32, 64, dtype=torch.bfloat16, requires_grad=True),)


class Observed:
    """A model, and all results of one step that a program can observe."""

    def __init__(self, model: nn.Module, inputs: tuple[torch.Tensor, ...], forward: Callable[..., Any]) -> None:
        self.model, self.forward = model, forward
        self.inputs = [value.detach().clone().requires_grad_(value.requires_grad) for value in inputs]
        self.hooks = 0
        for tensor in [*model.parameters(), *(value for value in self.inputs if value.requires_grad)]:
            tensor.register_hook(self.count)
            tensor.register_post_accumulate_grad_hook(self.count)

    def count(self, _: torch.Tensor) -> None:
        self.hooks += 1

    def step(self) -> dict[str, Any]:
        self.hooks = 0
        held = [*self.model.parameters(), *self.model.buffers()]
        versions, random = [tensor._version for tensor in held], torch.get_rng_state()
        given = [value * 1 if value.requires_grad else value for value in self.inputs]  # not leaves, to be changed
        outputs = self.forward(*given)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        seen: dict[str, Any] = {
            "outputs": [value.tolist() for value in outputs],
            "inputs": [value.tolist() for value in given],
            "buffers": [value.tolist() for value in self.model.buffers()],
            "versions": [tensor._version - before for tensor, before in zip(held, versions, strict=True)],
            "random": torch.equal(torch.get_rng_state(), random),
            "hooks before the backward": self.hooks,
            "grad before the backward": sum(tensor.grad is not None for tensor in self.model.parameters()),
            "records": torch.is_grad_enabled(),
        }
        sum((value.float() ** 2).sum() for value in outputs).backward()
        tensors = [*self.model.parameters(), *(value for value in self.inputs if value.requires_grad)]
        seen |= {"gradients": [value.grad.tolist() for value in tensors if value.grad is not None], "hooks": self.hooks}
        for tensor in tensors:
            tensor.grad = None
        return seen


def is_right(found: dict[str, Any], expected: dict[str, Any], dtype: torch.dtype) -> bool:
    tolerance = 0.05 if dtype is torch.bfloat16 else 1e-4  # a wrong artifact differs by 1 %
    names = ("outputs", "inputs", "buffers", "gradients")
    pairs = [
        (torch.tensor(left), torch.tensor(right))
        for name in names
        for left, right in zip(found[name], expected[name], strict=True)
    ]
    return all(torch.allclose(left, right, rtol=tolerance, atol=tolerance) for left, right in pairs)


def main() -> None:
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="precompiled")
    torch.manual_seed(0)
    model, inputs = globals()[sys.argv[1]]()
    plain = copy.deepcopy(model)
    precompiled.enable()
    compiled, eager = Observed(model, inputs, torch.compile(model)), Observed(plain, inputs, plain)
    seen, right = [], []
    for number in range(STEPS):
        seen.append(compiled.step())
        right.append(is_right(seen[-1], eager.step(), inputs[0].dtype))
        if number == 0:
            print("@pending", flush=True)
            assert precompiled.wait(300)
    reports = [
        {
            **{
                name: getattr(graph, name) for name in ("state", "source", "reason", "message", "key", "calls_compiled")
            },
            "checked": any(span.what == "check" for span in graph.spans),
        }
        for graph in precompiled.report()
    ]
    print(json.dumps({"seen": seen, "right": right, "reports": reports}))


if __name__ == "__main__":
    main()
