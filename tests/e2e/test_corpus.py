"""Every row of the corpus: swapped in, and a hit in the next process, equal to eager, and compiled by no client."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import support_corpus
from support_corpus import BYPASSED, Answer
from support_host import TIMEOUT_S, Host, new_host

DDP_PROGRAM = Path(__file__).parent.parent / "programs" / "ddp_program.py"


@pytest.fixture(scope="module")
def answers() -> list[Answer]:
    """Three processes, one after the other, each running all rows; the second without packages."""
    with new_host() as host:
        host.start_daemon()
        return [support_corpus.run(host, env={"PRECOMPILED_PACKAGES": on}) for on in ("program", "off", "program")]


def test_no_result_is_wrong(answers: list[Answer]) -> None:
    assert [support_corpus.wrong(answer) for answer in answers] == [{}, {}, {}]


def test_every_graph_comes_from_the_daemon(answers: list[Answer]) -> None:
    first, second, third = answers
    assert support_corpus.not_served(first, "swap", "hit") == {}
    assert support_corpus.not_served(second, "hit") == {}
    # A float that Dynamo learns to be dynamic by tracing it twice is static where the first trace was spared.
    assert support_corpus.not_served(third, "hit", "package").keys() <= {"a_float_that_changes"}


def test_no_frame_is_traced_that_a_package_holds(answers: list[Answer]) -> None:
    first, _second, third = answers
    assert support_corpus.traced(third).keys() <= support_corpus.TRACED.keys(), support_corpus.traced(third)
    for name, frames in support_corpus.traced(first).items():
        reasons = {frame[2] for frame in frames if frame[1] == "traced"}
        assert reasons <= {support_corpus.TRACED.get(name)}, (name, frames)


def test_what_is_bypassed_says_why(answers: list[Answer]) -> None:
    for name, reasons in BYPASSED.items():
        for answer in answers:
            found = {graph[2] for graph in answer[name]["graphs"]} - {""}
            assert found and found <= reasons, name
    assert len(BYPASSED) <= 3


def test_both_ranks_of_a_data_parallel_model_share_their_artifacts(host: Host) -> None:
    """DDPOptimizer's pieces are graphs like any other: compiled once for both ranks."""
    host.start_daemon()
    environment = host.environment({"OMP_NUM_THREADS": "1"})
    for source in ("swap", "hit"):
        file = str(host.root / f"rendezvous-{source}")
        ranks = [
            subprocess.Popen(
                [sys.executable, str(DDP_PROGRAM), str(rank), file],
                env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for rank in range(2)
        ]  # fmt: skip
        found = []
        for rank in ranks:
            output, errors = rank.communicate(timeout=TIMEOUT_S)
            assert rank.returncode == 0, errors[-4000:]
            found.append(json.loads(output.splitlines()[-1]))
        for answer in found:
            assert answer["compiles"] == 0
            assert len(answer["reports"]) >= 2, "it was not split"
            assert {(state, reason) for state, _, reason, _ in answer["reports"]} == {("compiled", "")}
            if source == "hit":
                assert {graph[1] for graph in answer["reports"]} == {"hit"}
    keys = {graph[3] for answer in found for graph in answer["reports"]}
    assert host.stats().compiled == len(keys)
