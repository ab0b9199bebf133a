"""Tests that each program of the corpus is served.

The graphs are swapped in the first process, and are cache hits in later processes. The values must equal those of eager
code, and no client may compile a graph.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import support_corpus
from support_corpus import BYPASSED, Answer
from support_host import Host

# A test's timeout includes its fixtures. Three processes with all rows take 15 minutes on two slow cores.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(3000)]

DDP_PROGRAM = Path(__file__).parent.parent / "programs" / "ddp_program.py"


@pytest.fixture(scope="module", params=["every-sixteenth-row", pytest.param("all-rows", marks=pytest.mark.slow)])
def answers(shared_host: Host, request: pytest.FixtureRequest) -> list[Answer]:
    """Runs the rows in three successive processes and returns their answers. Packages are off in the second process."""
    names = ["every-sixteenth", *BYPASSED] if request.param == "every-sixteenth-row" else []
    settings = [{"PRECOMPILED_PACKAGES": on} for on in ("program", "off", "program")]
    return [support_corpus.run(shared_host, *names, env=env) for env in settings]


def test_no_result_is_wrong(answers: list[Answer]) -> None:
    assert [support_corpus.wrong(answer) for answer in answers] == [{}, {}, {}]


def test_every_graph_comes_from_the_daemon(answers: list[Answer]) -> None:
    first, second, third = answers
    # "package" is possible because an optimizer's second step uses the package that its first step recorded.
    assert support_corpus.not_served(first, "swap", "hit", "package") == {}
    assert support_corpus.not_served(second, "hit") == {}
    assert support_corpus.not_served(third, "hit", "package") == {}


def test_no_frame_with_a_package_is_traced(answers: list[Answer]) -> None:
    first, _second, third = answers
    # The third process traces the frames that the first process did not record. Check that their reasons are expected.
    for name, frames in support_corpus.traced(first).items():
        reasons = {frame[2] for frame in frames if frame[1] == "traced"}
        assert reasons <= support_corpus.TRACED.get(name, set()), (name, frames)
    unexpected = {name: row for name, row in support_corpus.traced(third).items() if name not in support_corpus.TRACED}
    assert unexpected == {}


def test_bypassed_rows_have_the_expected_reasons(answers: list[Answer]) -> None:
    for name, reasons in BYPASSED.items():
        for answer in answers:
            found = {graph[2] for graph in answer[name]["graphs"]} - {""}
            assert found and found <= reasons, name
    assert len(BYPASSED) <= 3


@pytest.mark.slow
def test_both_ranks_of_a_data_parallel_model_share_their_artifacts(served: Host) -> None:
    """DDPOptimizer splits the model into several graphs. The daemon must compile each of these graphs once for both
    ranks.
    """
    for source in ("swap", "hit"):
        file = str(served.root / f"rendezvous-{source}")
        ranks = [served.program(str(DDP_PROGRAM), str(rank), file, env={"OMP_NUM_THREADS": "1"}) for rank in range(2)]
        found = [rank.result() for rank in ranks]
        for answer in found:
            assert answer["compiles"] == 0
            assert len(answer["reports"]) >= 2, "it was not split"
            assert {(state, reason) for state, _, reason, _ in answer["reports"]} == {("compiled", "")}
            if source == "hit":
                assert {graph[1] for graph in answer["reports"]} == {"hit"}
    keys = {graph[3] for answer in found for graph in answer["reports"]}
    assert served.stats().compiled == len(keys)
