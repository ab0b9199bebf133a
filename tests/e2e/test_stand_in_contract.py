"""Tests that training gives the same losses before, during and after a swap.

Two cases need special care:

- A checkpoint around a compiled block compares the tensors that its first run and its recomputation save. So both runs
  must be eager, or both compiled.
- DDP waits for a gradient of each parameter. So an eager run must return zero gradients, as compiled code does.
"""

from __future__ import annotations

import pytest
from support_host import Host
from support_training import SEEDS, swapped_as_plain

pytestmark = pytest.mark.integration


def spec(order: str, parallel: str, when: str, seed: int = 0, steps: int = 20) -> dict[str, object]:
    ranks = 2 if parallel else 1
    return {"order": order, "parallel": parallel, "ranks": ranks, "steps": steps, "seed": seed, "when": when}


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before-backward", "any"])
def test_checkpoint_around_a_compiled_block_survives_a_swap(shared_host: Host, when: str) -> None:
    swapped_as_plain(shared_host, "training_program.py", spec("torchtune", "", when))


@pytest.mark.parametrize("parallel", [pytest.param("ddp", marks=pytest.mark.slow), "ddp-static"])
def test_ddp_with_a_head_outside_of_the_loss_survives_a_swap(shared_host: Host, parallel: str) -> None:
    swapped_as_plain(shared_host, "training_program.py", spec("two-heads", parallel, "before-step"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("when", ["before-backward", "any"])
@pytest.mark.parametrize("parallel", ["fsdp2", "ddp"])
def test_torchtune_order_survives_a_swap_at_any_of_100_steps(
    shared_host: Host, parallel: str, when: str, seed: int
) -> None:
    swapped_as_plain(shared_host, "training_program.py", spec("torchtune", parallel, when, seed, 100))
