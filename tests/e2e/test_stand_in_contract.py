"""What a program may rely on while a graph runs eager, and when it is swapped: what it sees is what it sees compiled.

A checkpoint outside of a compiled block compares what its first run saves with what its recomputation saves: both must
be of one kind. DDP waits for a gradient of each parameter, and a compiled graph gives one even where it is zero.
"""

from __future__ import annotations

import pytest
from support_host import Host
from support_training import SEEDS, swapped_as_plain


def spec(order: str, parallel: str, when: str, seed: int = 0, steps: int = 20) -> dict[str, object]:
    ranks = 2 if parallel else 1
    return {"order": order, "parallel": parallel, "ranks": ranks, "steps": steps, "seed": seed, "when": when}


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before-backward", "any"])
def test_a_checkpoint_outside_of_the_compiled_block(shared_host: Host, when: str) -> None:
    swapped_as_plain(shared_host, "training_program.py", spec("torchtune", "", when))


@pytest.mark.parametrize("parallel", [pytest.param("ddp", marks=pytest.mark.slow), "ddp-static"])
def test_a_head_that_is_not_in_the_loss(shared_host: Host, parallel: str) -> None:
    swapped_as_plain(shared_host, "training_program.py", spec("two-heads", parallel, "before-step"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("when", ["before-backward", "any"])
@pytest.mark.parametrize("parallel", ["fsdp2", "ddp"])
def test_torchtunes_order_at_any_step_of_a_hundred(shared_host: Host, parallel: str, when: str, seed: int) -> None:
    swapped_as_plain(shared_host, "training_program.py", spec("torchtune", parallel, when, seed, 100))
