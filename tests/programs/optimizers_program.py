"""Runs training loops with an optimizer, eager and with a compiled ``optimizer.step()``, and reports the packages.

Usage: optimizers_program.py SPEC, a JSON object: ``after`` (whether to use the later form of each loop), ``loops``.
Prints a line of JSON: for each loop, whether it equals eager, and the package state of each frame.
"""

from __future__ import annotations

import gc
import json
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import precompiled

SPEC = json.loads(sys.argv[1])
AFTER = SPEC["after"]
COMPILED = False
precompiled.enable()

STEPS = 3
Parameters = list[nn.Parameter]
Made = Callable[[Parameters], torch.optim.Optimizer]


def gradients(parameters: Parameters) -> None:
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape)


def transposed(parameters: Parameters) -> None:
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape).t() if AFTER else torch.randn(parameter.shape)


def not_all(parameters: Parameters) -> None:
    gradients(parameters)
    if AFTER:
        parameters[0].grad = None


def one_for_both(parameters: Parameters) -> None:
    gradients(parameters)
    if AFTER:
        parameters[0].grad = parameters[1].grad


def two_groups(parameters: Parameters) -> torch.optim.Optimizer:
    groups = [{"params": parameters[:1], "weight_decay": 0.1}, {"params": parameters[1:], "weight_decay": 0.0}]
    if AFTER:
        groups[0]["weight_decay"], groups[1]["weight_decay"] = 0.0, 0.1
    return torch.optim.AdamW(groups, lr=torch.tensor(0.1))


def with_state(parameters: Parameters) -> torch.optim.Optimizer:
    """Returns an optimizer whose state exists before the first step, as after a load of a checkpoint."""
    optimizer = torch.optim.Adam(parameters, lr=torch.tensor(0.1))
    if AFTER:
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        other = torch.optim.Adam(parameters, lr=torch.tensor(0.1))
        other.load_state_dict(optimizer.state_dict())
        return other
    return optimizer


def hooked(parameters: Parameters) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(parameters, lr=torch.tensor(0.1))

    def doubles(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for parameter in parameters:
            parameter.grad.mul_(2.0)

    if AFTER:
        optimizer.register_step_pre_hook(doubles)
    return optimizer


class OwnState(torch.optim.Adam):
    """An optimizer whose own code creates state. Dynamo does not trace ``_init_group``, so no guard covers FIRST."""

    def _init_group(self, group: Any, *lists: Any) -> bool:
        new = [parameter for parameter in group["params"] if parameter not in self.state]
        complex = super()._init_group(group, *lists)
        for parameter in new:
            self.state[parameter]["exp_avg_sq"].add_(FIRST)
        return complex


class OwnStep(torch.optim.Adam):
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = parameter.grad * (3.0 if AFTER else 2.0)
        return super().step(closure)


FIRST = 1.0 if AFTER else 0.5

LOOPS: dict[str, tuple[Made, Callable[[Parameters], None]]] = {
    "adam": (lambda p: torch.optim.Adam(p, lr=0.1), gradients),
    "adamw_with_a_tensor_rate": (lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.2 if AFTER else 0.1)), gradients),
    # On the CPU, eager optimizers do not support ``capturable``.
    "capturable": (lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1), capturable=COMPILED), gradients),
    "sgd_with_momentum": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), gradients),
    "rmsprop": (lambda p: torch.optim.RMSprop(p, lr=0.1), gradients),
    "from_a_checkpoint": (with_state, gradients),
    "another_rate": (lambda p: torch.optim.SGD(p, lr=0.2 if AFTER else 0.1), gradients),
    "another_weight_decay": (lambda p: torch.optim.Adam(p, weight_decay=0.2 if AFTER else 0.1), gradients),
    "another_kind_of_state": (lambda p: torch.optim.Adam(p, amsgrad=AFTER), gradients),
    "groups_the_other_way_round": (two_groups, gradients),
    "gradients_with_other_strides": (lambda p: torch.optim.Adam(p, lr=0.1), transposed),
    "a_parameter_without_a_gradient": (lambda p: torch.optim.Adam(p, lr=0.1), not_all),
    "one_gradient_of_two_parameters": (lambda p: torch.optim.Adam(p, lr=0.1), one_for_both),
    "a_hook": (hooked, gradients),
    "state_of_its_own": (lambda p: OwnState(p, lr=torch.tensor(0.1)), gradients),
    "a_step_of_its_own": (lambda p: OwnStep(p, lr=torch.tensor(0.1)), gradients),
}


def stepped(name: str) -> tuple[list[torch.Tensor], list[weakref.ref[torch.Tensor]]]:
    """Run a loop. Returns parameters and state after each step, and weak references to the state's tensors."""
    make, set_gradients = LOOPS[name]
    size = 4 + list(LOOPS).index(name)
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(size, size)) for _ in range(2)]
    optimizer = make(parameters)

    def update() -> None:
        optimizer.step()

    step = torch.compile(update) if COMPILED else update
    found: list[torch.Tensor] = []
    for _ in range(STEPS):
        set_gradients(parameters)
        step()
        found += [parameter.detach().clone() for parameter in parameters]
        found += [tensor.clone() for tensor in _state(optimizer)]
    return found, [weakref.ref(tensor) for tensor in _state(optimizer)]


def _state(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for state in optimizer.state.values():
        yield from (tensor for tensor in state.values() if isinstance(tensor, torch.Tensor))


def model_and_optimizer() -> list[torch.Tensor]:
    """Train a compiled model with a compiled optimizer step. The last batch has a different size.

    Before the last batch, the optimizer has marked the parameters of the model.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01))
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=5)
    compiled = torch.compile(model, dynamic=False) if COMPILED else model

    def update() -> None:
        optimizer.step()
        schedule.step()

    step = torch.compile(update) if COMPILED else update
    found = []
    for batch in (16, 16, 12):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(compiled(torch.randn(batch, 8)), torch.arange(batch) % 3)
        loss.backward()
        step()
        found += [loss.detach().clone(), *(parameter.detach().clone() for parameter in model.parameters())]
    return found


def examine(name: str) -> dict[str, Any]:
    global COMPILED
    from precompiled.client.process import PROCESS

    known = len(precompiled.package_report())
    alive: list[weakref.ref[torch.Tensor]] = []
    results = []
    for COMPILED in (False, True):  # noqa: B007
        if name == "model_and_optimizer":
            results.append(model_and_optimizer())
        else:
            found, alive = stepped(name)
            results.append(found)
            del found
    expected, got = results
    assert PROCESS.packages is not None and PROCESS.packages.flush(60)
    reports = precompiled.package_report()[known:]
    gc.collect()
    kept = sum(reference() is not None for reference in alive)
    torch._dynamo.reset()
    equal = [torch.allclose(left, right, rtol=1e-4, atol=1e-5) for left, right in zip(got, expected, strict=True)]
    return {
        "equal": len(got) == len(expected) and all(equal),
        "frames": [
            [report.name.rpartition(".")[2], report.state, report.reason, report.message, *report.reasons]
            for report in reports
        ],
        "kept_alive": kept,
    }


def main() -> None:
    print(json.dumps({name: examine(name) for name in SPEC["loops"]}), flush=True)


if __name__ == "__main__":
    main()
