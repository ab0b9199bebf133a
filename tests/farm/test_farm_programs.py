"""A farm of real nodes: what no worker here has room for is compiled there, and a client swaps it in as always."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import support_farm
from support_host import TIMEOUT_S, Host

pytest.importorskip("ray", reason="needs Ray: pip install '.[test-farm]'")
pytestmark = pytest.mark.slow  # a cluster, cold compiles

PROGRAM = Path(__file__).parent.parent / "programs" / "farm_program.py"


@pytest.fixture(scope="module")
def cluster() -> Iterator[support_farm.Cluster]:
    with support_farm.cluster() as found:
        found.add()
        found.add()
        yield found


def settings(cluster: support_farm.Cluster, **more: str) -> dict[str, str]:
    return {
        "PRECOMPILED_FARM": "auto", "RAY_ADDRESS": cluster.address, "PRECOMPILED_WORKERS": "1",
        "OMP_NUM_THREADS": "1", **more,
    }  # fmt: skip


def command(host: Host, env: dict[str, str], *arguments: str, status: int = 0) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "precompiled", *arguments, "--json"], env=host.environment(env), check=False,
        capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    return json.loads(done.stdout)


def run(host: Host, env: dict[str, str], graphs: int, seed: int = 0) -> Any:
    return host.program("-m", "precompiled", "run", "--", sys.executable, str(PROGRAM), str(graphs), str(seed), env=env,
                        forked=False).result()  # fmt: skip


def test_what_finds_no_slot_is_compiled_on_the_farm(host: Host, cluster: support_farm.Cluster) -> None:
    env = settings(cluster)
    found = run(host, env, 5)
    assert found["done"] and [state for state, *_ in found["graphs"]] == ["compiled"] * 5
    farm = json.loads((host.store.root / "remote" / "farm.json").read_text())
    assert farm["compiled"] > 0 and farm["failed"] == farm["refused"] == {}, farm
    stats = host.stats()
    assert (stats.compiled, stats.submitted) == (5 - farm["compiled"], 5), (stats, farm)
    # What came is what a worker here would have made: the next process runs it.
    again = run(host, env, 5)
    assert [source for _, source, _ in again["graphs"]] == ["hit"] * 5
