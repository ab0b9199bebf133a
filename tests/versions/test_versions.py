"""Tests of environments with different torch versions that one daemon serves, and of the core with the oldest and the
newest torch.

`make test-versions` runs these tests. environments.py describes the environments and their installation.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import psutil
import pytest
import support_corpus
from support_host import Host

pytestmark = pytest.mark.versions

OLDEST, EVERYDAY, NEWEST = "2.11.0", "2.13.0", "2.15.0"
MLP = {"model": "mlp", "training": True}


def states(graphs: list[dict[str, Any]]) -> set[tuple[str, str | None]]:
    return {(graph["state"], graph["source"]) for graph in graphs}


@pytest.mark.fault("version-skew")
@pytest.mark.parametrize(("one", "other"), itertools.combinations([OLDEST, EVERYDAY, NEWEST], 2))
def test_one_daemon_serves_two_environments_at_the_same_time(
    host: Host, python_of: Callable[[str], str], one: str, other: str
) -> None:
    pythons = {version: python_of(version) for version in (one, other)}
    host.start_daemon()
    both_run = host.root / "both-run"
    clients = {
        version: host.start({**MLP, "steps_until": str(both_run)}, python=python) for version, python in pythons.items()
    }
    for client in clients.values():
        client.wait_for("first-step")
    both_run.touch()
    first = {version: client.result() for version, client in clients.items()}
    for version, result in first.items():
        assert [graph["state"] for graph in result["first"]] == ["pending"], version
        assert states(result["reports"]) == {("compiled", "swap")}, version
        assert result["compiles"] == 0, version
    keys = {version: result["reports"][0]["key"] for version, result in first.items()}
    assert keys[one] != keys[other]

    workers = host.status().workers
    assert Counter(worker.torch.partition("+")[0] for worker in workers) == {one: 1, other: 1}
    for worker in workers:
        assert psutil.Process(worker.pid).cmdline()[0] == pythons[worker.torch.partition("+")[0]]
    assert host.stats().compiled == 2
    made_by = {entry.manifest.key: entry.manifest.environment["torch"] for entry in host.store.all_artifacts()}
    assert {version: made_by[key].partition("+")[0] for version, key in keys.items()} == {v: v for v in keys}

    for version, python in pythons.items():
        second = host.run(MLP, python=python)
        assert states(second["first"]) == {("compiled", "hit")}, version
        assert [graph["key"] for graph in second["reports"]] == [keys[version]]
        assert (second["compiles"], second["children"]) == (0, []), version
    assert host.stats().compiled == 2


@pytest.mark.parametrize("version", [OLDEST, EVERYDAY, NEWEST])
@pytest.mark.parametrize(
    ("model", "training"), [("mlp", True), ("mlp", False), ("gpt2", True)], ids=["mlp-train", "mlp-infer", "gpt2-train"]
)
def test_models_are_swapped_and_hit_on_each_version(
    shared_host: Host, python_of: Callable[[str], str], version: str, model: str, training: bool
) -> None:
    python = python_of(version)
    spec = {"model": model, "training": training}
    cached = shared_host.cached()
    first = shared_host.run(spec, python=python)
    assert first["waited"]
    assert states(first["first"]) == {("pending", None)}
    assert states(first["reports"]) == {("compiled", "swap")}, first["reports"]
    assert first["compiles"] == 0, "the client compiled itself"

    second = shared_host.run(spec, python=python)
    assert states(second["first"]) == {("compiled", "hit")}, second["reports"]
    assert all(graph["calls_eager"] == 0 for graph in second["reports"])
    assert [graph["key"] for graph in second["reports"]] == [graph["key"] for graph in first["reports"]]
    assert (second["compiles"], second["children"]) == (0, [])
    assert shared_host.cached() == cached, "a client filled Inductor's own cache"


# torch itself cannot compile these rows of the corpus, with or without precompiled. Each row gets the reason given
# here.
NOT_COMPILED_BY_TORCH = {
    OLDEST: {
        "complex_numbers": "worker-only-error",  # the backward fails: 'complex' object has no attribute 'get_name'
        "tensor_subclass_of_a_function": "compile-error",  # Dynamo fails: ... object has no attribute 'is_nested'
    }
}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_corpus_is_served_on_both_ends_of_the_range(host: Host, python_of: Callable[[str], str], version: str) -> None:
    python = python_of(version)
    host.start_daemon()
    exempt = NOT_COMPILED_BY_TORCH.get(version, {})
    for sources in (("swap", "hit"), ("hit",)):
        answer = support_corpus.run(host, python=python)
        # A row that torch cannot compile may still be right: if its graph runs eager first, the backward may end before
        # torch compiles it.
        assert set(support_corpus.wrong(answer)) <= exempt.keys()
        for name, code in exempt.items():
            assert {graph[0] for graph in answer[name]["graphs"]} == {"bypassed"}
            assert code in {graph[2] for graph in answer[name]["graphs"]}
        bypassed = support_corpus.BYPASSED_ON_2_11 if version == OLDEST else {}
        for name, reasons in bypassed.items():
            assert {graph[2] for graph in answer[name]["graphs"]} <= reasons, answer[name]
        served = {name: row for name, row in answer.items() if name not in {*exempt, *bypassed}}
        assert support_corpus.not_served(served, *sources) == {}
