"""Tests of real models with a real daemon.

The first process runs eager and swaps. The next process runs compiled code from its first call: it has cache hits, or
uses packages and traces nothing. All results equal eager's.
"""

from __future__ import annotations

import pytest
from support_host import Host
from support_slow import everyday_or_slow

pytestmark = pytest.mark.integration

CASES = [("gpt2", False), ("gpt2", True), ("bert", True), ("resnet", False)]
EVERYDAY = [("gpt2", True)]


@pytest.mark.parametrize(
    ("model", "training"),
    everyday_or_slow(CASES, EVERYDAY),
    ids=[f"{model}-{'train' if training else 'infer'}" for model, training in CASES],
)
def test_model_is_swapped_and_served_in_the_next_process(shared_host: Host, model: str, training: bool) -> None:
    spec = {"model": model, "training": training}
    cached = shared_host.cached()
    packages = {"PRECOMPILED_PACKAGES": "program" if training else "off"}
    first = shared_host.run(spec, packages)
    assert [graph["state"] for graph in first["first"]] == ["pending"] * len(first["first"])
    assert first["waited"]
    assert {(graph["state"], graph["source"]) for graph in first["reports"]} == {("compiled", "swap")}
    assert all(graph["calls_eager"] >= 1 and graph["calls_compiled"] >= 2 for graph in first["reports"])
    assert first["compiles"] == 0, "the client compiled itself"

    second = shared_host.run(spec, packages)
    found = "package" if training else "hit"
    assert {(graph["state"], graph["source"]) for graph in second["first"]} == {("compiled", found)}
    assert all(graph["calls_eager"] == 0 for graph in second["reports"])
    assert [graph["key"] for graph in second["reports"]] == [graph["key"] for graph in first["reports"]]
    assert second["compiles"] == 0
    assert second["children"] == [], "a hit started a process"
    assert shared_host.cached() == cached, "a client filled Inductor's own cache"
