"""One program, by plain ``torch.compile``, by eager, and by ours with several schedules of swaps: what differs."""

from __future__ import annotations

import collections
import warnings

import torch

from . import contenders
from .programs import Plan, Story, draw


def difference(ours: Story, other: Story, plan: Plan) -> str | None:
    """The first fact in which they differ; None where they do not."""
    tolerance = 0.2 if plan.autocast else 1e-3  # of bfloat16's rounding, which a batch norm over few rows enlarges
    for (name, left), (their_name, right) in zip(ours.facts, other.facts, strict=False):
        if name != their_name:
            return f"{name}: {left!r:.80}, where it is {their_name}: {right!r:.80}"
        if type(left) is not type(right):
            return f"{name}: {left!r:.80}, not {right!r:.80}"
        if isinstance(left, torch.Tensor):
            if left.shape != right.shape or left.dtype != right.dtype:
                return f"{name}: {left.dtype}{list(left.shape)}, not {right.dtype}{list(right.shape)}"
            distance = float((left.double() - right.double()).norm())
            if not distance <= tolerance * max(1.0, float(right.double().norm())):
                return f"{name}: off by {distance:.3g}"
        elif left != right:
            return f"{name}: {left!r:.80}, not {right!r:.80}"
    if len(ours.facts) != len(other.facts):
        return f"{len(ours.facts)} facts, not {len(other.facts)}"
    return None


def check(seed: int, schedules: int) -> tuple[list[str], collections.Counter[str]]:
    """The differences of one program, and what was counted."""
    plan = draw(seed)
    counted: collections.Counter[str] = collections.Counter(models=1)
    found = []
    # Homogeneous programs draw random numbers as compiled code does, and are judged by their gradients; the others
    # draw those of eager, and must come to the same.
    with contenders.settings(eagers_random_numbers=not plan.homogeneous):
        wanted, eager = contenders.plain(plan), contenders.eager(plan)
        torch._dynamo.reset()
        swapped = contenders.Swapped(plan)
        for _ in range(schedules):
            story = swapped.story()
            counted["programs"] += 1
            differs = difference(story, wanted, plan)
            if differs is not None and difference(story, eager, plan) is None:
                counted["as eager, where plain differs"] += 1
                differs = None
            if differs is not None:
                found.append(f"seed {seed}: {differs}\n    {plan}")
                break
        counted["swaps"] += swapped.swaps
        counted["calls that waited"] += swapped.waits
        if difference(wanted, eager, plan) is not None:
            counted["plain differs from eager"] += 1
    return found, counted


def check_task(task: tuple[int, int]) -> tuple[list[str], collections.Counter[str]]:
    try:
        return check(*task)
    except Exception as error:  # noqa: BLE001 - of the fuzz itself
        return [f"seed {task[0]}: the fuzz failed: {type(error).__name__}: {error}"], collections.Counter(failed=1)


def quiet() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
