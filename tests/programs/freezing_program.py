"""Changes the frozen weights of a model in place, and compares the results with plain torch.compile.

Usage: freezing_program.py before-the-swap | after-the-swap | of-another-value
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch._inductor.config
from corpus.settings import frozen

import precompiled

X = torch.linspace(-1, 1, 8 * 16).reshape(8, 16)


def model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))


def before_the_swap() -> bool:
    """Change a weight while its graph is pending. Returns whether the result then equals eager's.

    The change is made through ``.data``, so the version counter of the weight does not show it.
    """
    made = model()
    compiled = torch.compile(made)
    compiled(X)
    assert precompiled.report()[0].state == "pending"
    made[2].weight.data.mul_(2)
    precompiled.wait(300)
    return torch.allclose(compiled(X), made(X), atol=1e-5)


def changed_one_by_one(compiled: Callable[..., torch.Tensor], made: torch.nn.Module) -> list[torch.Tensor]:
    """Change each weight in place in turn, and restore it. Returns the result with each change, and the last result."""
    found = []
    for weight in made.parameters():
        before = weight.clone()
        weight.mul_(1.5)
        found.append(compiled(X))
        weight.copy_(before)
    return [*found, compiled(X)]


def after_the_swap() -> bool:
    """Change weights in place after the swap. Returns whether the results equal those of plain torch.compile."""
    made = model()
    compiled = torch.compile(made)
    compiled(X)
    precompiled.wait(300)
    found = changed_one_by_one(compiled, made)
    precompiled.disable()
    torch._dynamo.reset()
    plain = torch.compile(made)
    plain(X)
    expected = changed_one_by_one(plain, made)
    shown = [not torch.allclose(result, expected[-1]) for result in expected[:-1]]
    assert any(shown) and not all(shown), shown
    return all(torch.allclose(left, right, atol=1e-5) for left, right in zip(found, expected, strict=True))


def of_another_value() -> bool:
    made = model()
    made[2].weight.mul_(2)
    compiled = torch.compile(made)
    compiled(X)
    precompiled.wait(300)
    return torch.allclose(compiled(X), made(X), atol=1e-5)


def main() -> None:
    scenario = {
        "before-the-swap": before_the_swap,
        "after-the-swap": after_the_swap,
        "of-another-value": of_another_value,
    }[sys.argv[1]]
    warnings.simplefilter("ignore", RuntimeWarning)
    precompiled.enable()
    with frozen():
        equal = scenario()
    reports: list[Any] = [[graph.state, graph.source, graph.reason, graph.key] for graph in precompiled.report()]
    print(json.dumps({"equal": equal, "graphs": reports}), flush=True)


if __name__ == "__main__":
    main()
