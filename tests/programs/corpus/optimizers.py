"""Rows of the corpus about compiled optimizer steps. The graph holds the parameters and the state as attributes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from corpus.rows import ROWS, Row, linear


def step(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()


def steps(make: Callable[..., torch.optim.Optimizer], function: Callable[..., Any]) -> list[torch.Tensor]:
    """Run three steps, the first without state. Returns the parameters and the state after each step."""
    torch.manual_seed(1)
    model = linear(8, 4, 2)
    optimizer = make(model.parameters())
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(3, 8)).square().sum().backward()
        function(optimizer)
        state = [value for of_one in optimizer.state.values() for _, value in sorted(of_one.items())]
        found += [value.detach().clone() for value in [*model.parameters(), *state] if isinstance(value, torch.Tensor)]
    return found


def _row(make: Callable[..., torch.optim.Optimizer]) -> Row:
    return Row(step, [()], run=functools.partial(steps, make))


for _name, _make in {
    "sgd": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": functools.partial(torch.optim.Adam, lr=0.01, foreach=False),
    "adam_foreach": functools.partial(torch.optim.Adam, lr=0.01, foreach=True, amsgrad=True),
    "adamw": functools.partial(torch.optim.AdamW, lr=0.01),
    "adamw_tensor_lr": lambda parameters: torch.optim.AdamW(parameters, lr=torch.tensor(0.01), foreach=False),
    "rmsprop": functools.partial(torch.optim.RMSprop, lr=0.01, centered=True),
    "adagrad": functools.partial(torch.optim.Adagrad, lr=0.01),
}.items():
    ROWS[f"optimizer_{_name}"] = functools.partial(_row, _make)
