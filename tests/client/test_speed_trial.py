"""Tests of speed trials: after measured calls, either the earlier or the new code serves the graph. A clock that the
calls advance replaces the real clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Any

import pytest

from precompiled.client.serving_code import ServingCode
from precompiled.client.speed_trial import MAX_CALLS, SAMPLES, WARM_UP, Lost, SpeedTrial

# The maximum number of calls in a trial of slower code: calls of the slower code and calls of the earlier code.
DECIDED_AFTER = WARM_UP + 3 * SAMPLES


class Graph:
    """A graph whose earlier and new code take given seconds, and whose backward takes further seconds after each
    call.
    """

    def __init__(self, *, trains: bool = False, free: bool = True) -> None:
        self.now = 0.0
        self.ran: list[str] = []
        self.lost: list[tuple[Lost, Callable[..., Any], bool]] = []
        self.free = free
        self.backward: dict[str, float] = {}
        trial = SpeedTrial(tuple, lambda args: trains, lambda args: self.free, clock=lambda: self.now)
        self.eager = self.code("eager", 1.0)
        self.serving: Callable[..., Any] = self.eager
        self.serves = ServingCode(trial, self.eager, self.serve, lambda *lost: self.lost.append(lost))
        self.serve(self.serves.measured(self.eager))

    def serve(self, code: Callable[..., Any]) -> None:
        self.serving = code

    def code(self, name: str, *seconds: float) -> Callable[..., Any]:
        times = cycle(seconds)

        def run(*sizes: int) -> str:
            self.ran.append(name)
            self.now += next(times) * (sizes[0] if sizes else 1)
            return name

        return run

    def swap(self, code: Callable[..., Any], *, in_pieces: bool = False) -> None:
        self.serves.replace(lambda ran: code, in_pieces=in_pieces)

    def call(self, count: int, sizes: Sequence[int] = ()) -> list[str]:
        before = len(self.ran)
        for _ in range(count):
            self.serving(*sizes)
            self.now += self.backward.get(self.ran[-1], 0.0)
        return self.ran[before:]


def test_slower_code_is_replaced_by_the_earlier_code() -> None:
    graph = Graph()
    graph.call(10)
    graph.swap(graph.code("compiled", 1.5))
    assert "compiled" in graph.call(DECIDED_AFTER)
    assert graph.call(50) == ["eager"] * 50
    ((lost, to, in_pieces),) = graph.lost
    assert lost == (1.0, 1.5) and to is graph.eager and not in_pieces


@pytest.mark.parametrize("seconds", [0.5, 1.0, 1.04])
def test_faster_and_equal_code_stays_and_no_call_runs_the_earlier_code_again(seconds: float) -> None:
    graph = Graph()
    graph.call(10)
    compiled = graph.code("compiled", seconds)
    graph.swap(compiled)
    assert set(graph.call(30)) == {"compiled"}
    assert graph.serving is compiled and not graph.lost


def test_code_that_loses_microseconds_stays() -> None:
    graph = Graph()
    graph.serve(graph.serves.measured(graph.code("eager", 0.0001)))
    graph.call(10)
    compiled = graph.code("compiled", 0.0009)
    graph.swap(compiled)
    assert set(graph.call(30)) == {"compiled"} and graph.serving is compiled


def test_code_with_varying_times_stays() -> None:
    graph = Graph()
    graph.call(10)
    compiled = graph.code("compiled", 3.0, 3.0, 0.4)
    graph.swap(compiled)
    graph.call(60)
    assert graph.serving is compiled and not graph.lost


def test_slow_first_calls_do_not_count() -> None:
    graph = Graph()
    graph.call(10)
    graph.swap(graph.code("compiled", *([60.0] * WARM_UP), *([0.5] * 100)))
    assert set(graph.call(30)) == {"compiled"}


def test_backward_counts_in_training() -> None:
    graph = Graph(trains=True)
    graph.backward = {"compiled": 5.0, "eager": 1.0}
    graph.call(10)
    graph.swap(graph.code("compiled", 0.5))
    graph.call(DECIDED_AFTER + 1)
    assert set(graph.call(20)) == {"eager"} and len(graph.lost) == 1


def test_time_before_the_next_call_does_not_count_without_gradients() -> None:
    graph = Graph()
    graph.backward = {"compiled": 5.0}
    graph.call(10)
    graph.swap(graph.code("compiled", 0.5))
    assert set(graph.call(30)) == {"compiled"}


def test_only_calls_of_equal_sizes_are_compared() -> None:
    graph = Graph()
    for size in (1, 2, 1, 2, 1, 2):
        graph.call(1, [size])
    compiled = graph.code("compiled", 0.9)
    graph.swap(compiled)
    for size in [1, 2, 8, 9] * 10:
        graph.call(1, [size])
    assert graph.serving is compiled and not graph.lost


def test_sizes_that_never_come_back_keep_the_new_code() -> None:
    graph = Graph()
    graph.call(5, [1])
    compiled = graph.code("compiled", 9.0)
    graph.swap(compiled)
    for size in range(2, MAX_CALLS + 4):
        graph.call(1, [size])
    assert graph.serving is compiled and "eager" not in graph.ran[5:]


def test_calls_that_must_match_another_call_end_the_trial() -> None:
    graph = Graph()
    graph.call(10)
    compiled = graph.code("compiled", 3.0)
    graph.swap(compiled)
    graph.free = False
    assert set(graph.call(30)) == {"compiled"} and graph.serving is compiled


def test_calls_of_two_threads_end_the_trial() -> None:
    graph = Graph()
    graph.call(10)
    compiled = graph.code("compiled", 3.0)
    graph.swap(compiled)
    thread = threading.Thread(target=graph.call, args=(WARM_UP + 1,))
    thread.start()
    thread.join()
    assert graph.serving is compiled


def test_graph_without_measured_calls_has_no_trial() -> None:
    graph = Graph()
    compiled = graph.code("compiled", 9.0)
    graph.swap(compiled)
    assert graph.serving is compiled


@pytest.fixture
def in_pieces() -> Iterator[Graph]:
    graph = Graph()
    graph.call(10)
    graph.swap(graph.code("pieces", 0.5), in_pieces=True)
    assert set(graph.call(20)) == {"pieces"}
    yield graph


def test_whole_graph_is_compared_with_its_pieces(in_pieces: Graph) -> None:
    in_pieces.swap(in_pieces.code("whole", 0.8))
    in_pieces.call(DECIDED_AFTER)
    assert set(in_pieces.call(20)) == {"pieces"}
    ((lost, _, _),) = in_pieces.lost
    assert lost == pytest.approx((0.5, 0.8))


def test_faster_whole_graph_replaces_its_pieces(in_pieces: Graph) -> None:
    in_pieces.swap(in_pieces.code("whole", 0.4))
    assert set(in_pieces.call(40)) == {"whole"} and not in_pieces.lost


def test_slower_pieces_give_way_to_eager_code_until_the_whole_graph_arrives() -> None:
    graph = Graph()
    graph.call(10)
    graph.swap(graph.code("pieces", 3.0), in_pieces=True)
    graph.call(DECIDED_AFTER)
    assert set(graph.call(10)) == {"eager"}
    assert [in_pieces for _, _, in_pieces in graph.lost] == [True]
    graph.swap(graph.code("whole", 0.5))
    assert set(graph.call(40)) == {"whole"}


def test_whole_graph_that_arrives_during_the_trial_of_its_pieces_serves() -> None:
    graph = Graph()
    graph.call(10)
    graph.swap(graph.code("pieces", 0.5), in_pieces=True)
    trial = graph.serving
    graph.call(WARM_UP + SAMPLES)
    whole = graph.code("whole", 0.4)
    graph.swap(whole)
    trial()  # a call that began before the swap ends the trial of the pieces
    assert graph.serving is whole


def test_slower_code_is_replaced_although_the_first_call_of_the_earlier_code_was_slow() -> None:
    graph = Graph(trains=True)
    graph.backward = {"eager": 10.0}
    graph.call(1)
    graph.backward = {}
    graph.swap(graph.code("slower", 3.0))
    graph.call(DECIDED_AFTER)
    assert [lost for lost, _code, _in_pieces in graph.lost] == [Lost(1.0, 3.0)]
    assert set(graph.call(5)) == {"eager"}
