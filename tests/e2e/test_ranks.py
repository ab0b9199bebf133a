"""Tests of jobs with several ranks over gloo. Results equal eager's, and a graph that ranks share is compiled once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support_host import Host

from precompiled.torch_internals import version_tuple

PROGRAM = Path(__file__).parent.parent / "programs" / "ranks_program.py"

with_dtensors = pytest.mark.skipif(
    version_tuple(torch.__version__) < (2, 13), reason="DTensors are refused on this torch"
)
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed"),
]


class Job:
    """One case of the ranks program on one host. The case can be started several times."""

    def __init__(self, host: Host, case: str, ranks: int) -> None:
        self.host, self.case, self.ranks, self.starts = host, case, ranks, 0

    def start(self, spare: int = 0) -> list[list[Any]]:
        """Run all ranks. Returns state, source, reason and key of each graph, by rank. ``spare``: additional groups."""
        self.starts += 1
        spec = {
            "case": self.case,
            "ranks": self.ranks,
            "spare": spare,
            "rendezvous": str(self.host.root / f"rendezvous-{self.case}-{self.starts}"),
        }
        env = {"OMP_NUM_THREADS": "1"}  # the ranks share the machine's cores
        started = [self.host.start({**spec, "rank": rank}, env=env, program=PROGRAM) for rank in range(self.ranks)]
        answers = [client.result() for client in started]
        return [answer["reports"] for answer in answers]


def keys_of(ranks: list[list[Any]], source: str | None = None) -> set[str]:
    """Check that each graph was served, from ``source`` if given. Returns the keys of all graphs."""
    for reports in ranks:
        assert reports, "no graph"
        for state, how, reason, _key in reports:
            assert state == "compiled" and not reason and (source is None or how == source), ranks
    return {key for reports in ranks for *_, key in reports}


def test_ranks_share_one_compile_and_group_names_do_not_matter(served: Host) -> None:
    job = Job(served, "one_group", 4)
    keys = keys_of(job.start())
    assert len(keys) == 1 and served.stats().compiled == 1
    assert keys_of(job.start(spare=3), "hit") == keys


@pytest.mark.slow
def test_graph_with_several_groups_hits_if_one_more_group_exists(served: Host) -> None:
    job = Job(served, "several_groups", 4)
    keys = keys_of(job.start())
    assert len(keys) == 1 and served.stats().compiled == 1
    assert keys_of(job.start(spare=1), "hit") == keys


@with_dtensors
def test_tensor_parallel_layers_are_served_and_a_second_start_hits(served: Host) -> None:
    """Each of the two ranks has its own key, because its shard may differ.

    In the second start, the groups have different names, which must not change the keys.
    """
    job = Job(served, "tensor_parallel", 2)
    keys = keys_of(job.start())
    assert len(keys) == served.stats().compiled == 2
    assert keys_of(job.start(spare=2), "hit") == keys


@pytest.mark.slow
@with_dtensors
@pytest.mark.parametrize(
    ("case", "ranks", "compiled"),
    [
        ("in_pairs", 4, 2),
        ("two_dimensional", 4, 1),
        ("uneven", 4, 4),
        ("sequence_parallel", 2, 2),
        ("loss_parallel_too", 2, 2),
        ("plain_dtensors", 2, 4),
        ("any_size", 2, 2),
    ],
)
def test_dtensor_programs_equal_eager_and_hit_in_a_second_start(
    served: Host, case: str, ranks: int, compiled: int
) -> None:
    job = Job(served, case, ranks)
    keys = keys_of(job.start())
    assert served.stats().compiled == compiled
    assert keys_of(job.start(spare=1), "hit") == keys
