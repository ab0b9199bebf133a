"""Tests a small fleet: all hosts start at the same time with empty stores, and some are killed. Each graph is compiled
once, and no graph is lost.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support_places import KINDS

from benchmarks.fleet.simulate import Plan, run
from precompiled.remote.trusting import Anybody

pytestmark = pytest.mark.timeout(1200)


PLACES = [
    pytest.param("file", marks=pytest.mark.slow),
    *(pytest.param(kind, marks=pytest.mark.buckets) for kind in KINDS),
]


@pytest.mark.parametrize("url", PLACES, indirect=True)
@pytest.mark.parametrize("killed", [0.0, 0.3])
def test_cold_fleet_compiles_each_graph_once_and_loses_none(killed: float, url: str, tmp_path: Path) -> None:
    plan = Plan(40, 5, killed, compile_s=(0.5, 3.0), seed=1)
    outcome = run(plan, tmp_path / "stores", url, Anybody(), lambda text: None)
    assert outcome.lost == [] and outcome.errors == 0
    # Exactly one compile of each graph was completed. If a host was killed during a compile, another host compiled the
    # graph.
    assert set(outcome.completed.values()) == {1} and len(outcome.completed) == plan.graphs
    assert outcome.started.total() >= plan.graphs + len(outcome.gaps)
    assert (outcome.killed > 0) is (killed > 0)
    # A host that was killed after its put leaves a lease, which has no effect.
    assert len(outcome.gaps) <= outcome.killed_holding
