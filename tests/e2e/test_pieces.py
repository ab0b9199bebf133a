"""Tests that a graph with equal layers runs compiled in pieces, and then as a whole, with the results of eager code."""

from __future__ import annotations

from pathlib import Path

import pytest
from support_host import Client, Host

PROGRAM = str(Path(__file__).parent.parent / "programs" / "layered_program.py")

pytestmark = pytest.mark.integration


ALWAYS = {"PRECOMPILED_PROGRESS": "always"}


def lines_of(client: Client) -> list[str]:
    return [line for line in client.text().splitlines() if line.startswith("precompiled: ")]


@pytest.fixture(autouse=True)
def short_low_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, a compile of idle priority would last a minute."""
    monkeypatch.setenv("PRECOMPILED_YIELD_S", "0.1")


def test_graph_runs_eager_then_in_pieces_then_whole(host: Host) -> None:
    host.start_daemon()
    found = host.program(PROGRAM, "14").result()
    assert found == {"ways": ["eager", "pieces", "whole"], "first": "eager", "message": ""}
    log = (host.runtime_dir / "daemon.log").read_text()
    assert log.count(": queued, idle") == 1, "only the whole graph is compiled at idle priority"

    # A deeper model finds all its pieces in the store. Only the deeper model's whole graph is compiled.
    before = host.stats().compiled
    deeper = host.program(PROGRAM, "16", env=ALWAYS)
    assert deeper.result()["ways"] == ["pieces", "whole"]
    assert host.stats().compiled == before + 1
    assert lines_of(deeper) == ["precompiled: 1 graph runs compiled in pieces from the cache"]

    # A later process loads the artifact of the whole graph.
    later = host.program(PROGRAM, "16", env=ALWAYS)
    assert later.result()["ways"] == ["whole"]
    assert host.stats().compiled == before + 1
    (line,) = lines_of(later)
    assert line.startswith("precompiled: 1 of 1 graph from the cache (about ")


def test_wait_returns_with_the_pieces(host: Host) -> None:
    host.start_daemon()
    found = host.program(PROGRAM, "6", env={"PRECOMPILED_MODE": "wait"}).result()
    assert found["ways"] == ["pieces", "whole"]


@pytest.mark.parametrize("mode", ["setting", "determinism"])
def test_program_that_waits_may_exclude_pieces(host: Host, mode: str) -> None:
    host.start_daemon()
    env = {"PRECOMPILED_MODE": "wait", **({"PRECOMPILED_TIERS": "default"} if mode == "setting" else {})}
    found = host.program(PROGRAM, "14", *(["deterministic"] if mode == "determinism" else []), env=env).result()
    assert found["ways"] == ["whole"]
    assert host.stats().compiled == 1


def test_shallow_model_that_runs_eager_is_not_cut(host: Host) -> None:
    host.start_daemon()
    assert host.program(PROGRAM, "6").result()["ways"] == ["eager", "whole"]
    assert host.stats().compiled == 1
