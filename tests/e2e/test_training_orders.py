"""Tests that training survives a swap, for each order in which libraries wrap a model.

The wrappers are checkpoints, torch.compile, DDP and FSDP2.
"""

from __future__ import annotations

import pytest
from support_host import Host
from support_training import SEEDS, swapped_as_plain

pytestmark = pytest.mark.integration


def spec(order: str, parallel: str, when: str, seed: int = 0, steps: int = 20) -> dict[str, object]:
    ranks = 2 if parallel else 1
    return {"order": order, "parallel": parallel, "ranks": ranks, "steps": steps, "seed": seed, "when": when}


@pytest.mark.parametrize(
    ("order", "parallel", "when"),
    [
        ("torchtune", "fsdp2", "before-step"),
        pytest.param("torchtitan", "fsdp2", "before-backward", marks=pytest.mark.slow),
        pytest.param("torchtune", "ddp", "before-step", marks=pytest.mark.slow),
    ],
)
def test_training_order_survives_a_swap_between_steps(shared_host: Host, order: str, parallel: str, when: str) -> None:
    swapped_as_plain(shared_host, "training_program.py", spec(order, parallel, when))


@pytest.mark.parametrize(
    ("use_reentrant", "when"),
    [
        pytest.param(True, "before-backward", marks=pytest.mark.slow),
        pytest.param(True, "before-step", marks=pytest.mark.slow),
        pytest.param(False, "before-backward", marks=pytest.mark.slow),
        pytest.param(False, "before-step", marks=pytest.mark.slow),
    ],
)
def test_trainer_of_transformers_survives_a_swap(shared_host: Host, when: str, use_reentrant: bool) -> None:
    spec = {"steps": 20, "seed": 0, "when": when, "use_reentrant": use_reentrant}
    swapped_as_plain(shared_host, "trainer_program.py", spec)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("when", ["before-step", "before-backward"])
@pytest.mark.parametrize("parallel", ["fsdp2", "ddp"])
@pytest.mark.parametrize("order", ["torchtitan", "none"])
def test_training_order_survives_a_swap_at_any_of_100_steps(
    shared_host: Host, order: str, parallel: str, when: str, seed: int
) -> None:
    swapped_as_plain(shared_host, "training_program.py", spec(order, parallel, when, seed, 100))
