"""Compares the runs of one program: under plain ``torch.compile``, eager, and precompiled with several schedules."""

from __future__ import annotations

import collections
import warnings
from typing import Any

import torch

from . import contenders
from .programs import LAYERED, Plan, Story, draw


def differs(name: str, left: Any, right: Any, tolerance: float) -> str | None:
    """Returns how a fact differs from the expected one, or None if they are equal."""
    if type(left) is not type(right):
        return f"{name}: {left!r:.80}, not {right!r:.80}"
    if not isinstance(left, torch.Tensor):
        return None if left == right else f"{name}: {left!r:.80}, not {right!r:.80}"
    if left.shape != right.shape or left.dtype != right.dtype:
        return f"{name}: {left.dtype}{list(left.shape)}, not {right.dtype}{list(right.shape)}"
    distance = float((left.double() - right.double()).norm())
    if distance <= tolerance * max(1.0, float(right.double().norm())):
        return None
    return f"{name}: off by {distance:.3g}"


def difference(ours: Story, plain: Story, eager: Story, plan: Plan) -> str | None:
    """Returns the first fact in which the run with precompiled differs from plain torch.compile, or None.

    A fact is not compared if the plain and the eager run differ in it. A partly eager run may then have a third value.
    """
    # A normalization over few values enlarges bfloat16's rounding without a bound, so with autocast values are not
    # compared.
    tolerance = float("inf") if plan.autocast else 1e-6 if plan.seed >= LAYERED else 1e-3
    values_differ = False
    for at, ((name, left), (plains_name, right)) in enumerate(zip(ours.facts, plain.facts, strict=False)):
        eagers_name, third = eager.facts[at] if at < len(eager.facts) else ("", None)
        if name != plains_name:
            return f"{name}: {left!r:.80}, where it is {plains_name}: {right!r:.80}"
        found = differs(name, left, right, tolerance)
        if eagers_name == name and type(third) is type(right) and differs(name, third, right, tolerance) is not None:
            if isinstance(left, torch.Tensor):
                values_differ = True
            elif name.startswith(("output", "who shares", "the gradient's masks")) and left == third:
                continue
        if found is not None and not (values_differ and isinstance(left, torch.Tensor) and "off by" in found):
            return found
    if len(ours.facts) != len(plain.facts):
        return f"{len(ours.facts)} facts, not {len(plain.facts)}"
    return None


def _is_refused(plan: Plan, plain: Story) -> bool:
    """Returns whether plain torch.compile refuses the program. Such a program may still run eager, in the stand-in.

    Plain torch.compile refuses a program for one of two reasons: the program changes an input that plain torch.compile
    saves for the backward, or the two runs of a checkpoint have different graphs in plain torch.compile.
    """
    is_changed = plan.after == "input" and ("raised", "RuntimeError") in plain.facts
    return is_changed or ("raised", "CheckpointError") in plain.facts


def check(seed: int, schedules: int) -> tuple[list[str], collections.Counter[str]]:
    """Run the program of a seed. Returns the differences of the program's runs, and counts for the table."""
    plan = draw(seed)
    counted: collections.Counter[str] = collections.Counter(models=1)
    found = []
    # Homogeneous programs (programs.py) draw the random numbers of compiled code. The results of homogeneous programs
    # differ from eager's, so only the gradients are checked. All other programs draw eager's random numbers, so results
    # must be equal.
    # Deep programs amplify rounding by up to 1e7, so they run in float64.
    dtype = torch.float64 if seed >= LAYERED else torch.float32
    with contenders.settings(eagers_random_numbers=not plan.homogeneous, dtype=dtype):
        wanted, eager = contenders.plain(plan), contenders.eager(plan)
        if _is_refused(plan, wanted):
            counted["models that plain refuses"] += 1
            return found, counted
        torch._dynamo.reset()
        swapped = contenders.Swapped(plan)
        for _ in range(schedules):
            story = swapped.story()
            counted["programs"] += 1
            differing = difference(story, wanted, eager, plan)
            if differing is not None:
                found.append(f"seed {seed}: {differing}\n    {plan}")
                break
        counted["swaps"] += swapped.swaps
        counted["swaps to pieces"] += swapped.swaps_to_pieces
        counted["calls that waited"] += swapped.waits
        if difference(wanted, wanted, eager, plan) or difference(eager, wanted, wanted, plan):
            counted["models that plain and eager differ in"] += 1
    return found, counted


def check_task(task: tuple[int, int]) -> tuple[list[str], collections.Counter[str]]:
    try:
        return check(*task)
    except (Exception, contenders.Crash) as error:  # an error of the fuzz test itself, reported with its seed
        return [f"seed {task[0]}: the fuzz failed: {type(error).__name__}: {error}"], collections.Counter(failed=1)


def quiet() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
