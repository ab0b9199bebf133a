"""A small fleet that starts cold at once, some of it killed: each graph is compiled once, and none is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.fleet import bucket
from benchmarks.fleet.simulate import Plan, run
from precompiled.remote.trusting import Anybody

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(params=["shared directory", "S3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param != "S3":
        yield f"file://{tmp_path / 'bucket'}"
        return
    pytest.importorskip("moto.server", reason="pip install precompiled[test-s3]")
    s3fs = pytest.importorskip("s3fs")
    with bucket.served() as port:
        for name, value in bucket.variables(port).items():
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()  # one that another test has made knows another server
        yield f"s3://{bucket.NAME}/prefix"
        s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.parametrize("killed", [0.0, 0.3])
def test_a_cold_fleet_compiles_each_graph_once_and_loses_none(killed: float, url: str, tmp_path: Path) -> None:
    plan = Plan(40, 5, killed, compile_s=(0.5, 3.0), seed=1)
    outcome = run(plan, tmp_path / "stores", url, Anybody(), lambda text: None)
    assert outcome.lost == [] and outcome.errors == 0
    # Of each graph one compile was completed; that of a holder who was killed was begun by the next one.
    assert set(outcome.completed.values()) == {1} and len(outcome.completed) == plan.graphs
    assert outcome.started.total() >= plan.graphs + len(outcome.gaps)
    assert (outcome.killed > 0) is (killed > 0)
    # One that was killed after its put left a lease that nobody needs.
    assert len(outcome.gaps) <= outcome.killed_holding
