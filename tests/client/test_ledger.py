"""Tests of the ledger, in which a process keeps its graphs' reports and the counts that it sends to the daemon."""

from __future__ import annotations

import ast
import threading
from pathlib import Path
from typing import Any

import pytest

from precompiled import wire
from precompiled.client.ledger import GraphCalls, GraphReport, Ledger
from precompiled.client.swap import Event, Swap

ROOT = Path(__file__).resolve().parents[2]


def graph(**facts: object) -> GraphCalls:
    return GraphCalls(GraphReport(id="1", name="forward", **facts))  # type: ignore[arg-type]


def calls(report: GraphReport) -> tuple[int, int]:
    return report.calls_eager, report.calls_compiled


def test_calls_before_the_swap_count_as_eager() -> None:
    one = graph()
    one.swap.on(Event.MISS)
    one.calls = 3
    assert (one.snapshot().state, calls(one.snapshot())) == ("pending", (3, 0))


def test_calls_after_the_swap_count_as_compiled() -> None:
    one = graph()
    one.swap.on(Event.MISS)
    one.calls, one.calls_before_flip = 3, 3
    one.swap.on(Event.LOADED)
    one.calls = 10
    assert (one.snapshot().state, calls(one.snapshot())) == ("compiled", (3, 7))


def test_eager_calls_after_the_swap_are_counted_with_their_reason() -> None:
    """The terminal says "compiled after call 3", but the report counts five eager calls."""
    one = graph()
    one.swap.on(Event.MISS)
    one.calls, one.calls_before_flip = 10, 3
    one.swap.on(Event.LOADED)
    for _ in range(2):
        one.ran_eager("timed")
    found = one.snapshot()
    assert calls(found) == (5, 5) and found.eager_after_swap == {"timed": 2}
    assert found.why == "2 eager calls came after the swap, to compare their times with compiled calls"
    one.ran_eager("sizes")
    assert one.snapshot().why == (
        "3 eager calls came after the swap: 2 to compare their times with compiled calls and 1 because no artifact "
        "fits their sizes"
    )
    assert found.eager_after_swap == {"timed": 2}, "a report is a copy"
    one.went_back("slower-than-eager", "compiled code is slower")
    one.ran_eager("timed")
    assert (calls(one.snapshot()), one.snapshot().eager_after_swap) == ((7, 3), {}), "the reason explains these calls"


def test_hit_has_no_eager_calls() -> None:
    one = graph()
    one.swap.on(Event.HIT)
    one.calls_before_flip = 0
    one.calls = 2
    assert calls(one.snapshot()) == (0, 2)


def test_a_report_is_a_copy() -> None:
    one = graph(key="k")
    before = one.snapshot()
    one.report.key, one.calls = "other", 5
    assert (before.key, before.calls_eager) == ("k", 0)
    assert one.snapshot().key == "other"


def test_reports_come_in_the_order_of_capture() -> None:
    ledger = Ledger()
    for number in range(5):
        ledger.add(GraphCalls(GraphReport(id=str(number), name="")))
    assert [report.id for report in ledger.reports()] == ["0", "1", "2", "3", "4"]


def test_only_hits_save_their_compile() -> None:
    swapped, hit = (GraphCalls(GraphReport(id="1", name="f")) for _ in range(2))
    for _ in range(2):
        (swap := Swap()).on(Event.MISS)
        swap.on(Event.PUBLISHED)
        swapped.loaded("swap", 0.1, 10.0, swap)
    hit.loaded("hit", 0.1, 10.0)
    assert (swapped.report.compile_s, swapped.report.saved_s) == (20.0, 0.0)
    assert (hit.report.compile_s, hit.report.saved_s) == (10.0, 10.0)


def test_counts_are_reported_once() -> None:
    ledger = Ledger()
    assert not ledger.take_counts()
    ledger.count(hits=1, saved_s=2.5)
    ledger.count(hits=1, misses=1)
    ledger.count_reason("bypassed", "custom-op")
    ledger.count_reason("bypassed", "custom-op")
    ledger.count_reason("fallbacks", "no-daemon")
    assert ledger.take_counts() == {
        "hits": 2,
        "misses": 1,
        "saved_s": 2.5,
        "bypassed": {"custom-op": 2},
        "fallbacks": {"no-daemon": 1},
    }
    assert not ledger.take_counts()


@pytest.mark.parametrize("kind", ["hits", "misses", "swapped", "saved_s"])
def test_single_count_is_reported(kind: str) -> None:
    ledger = Ledger()
    ledger.count(**{kind: 1})
    assert ledger.take_counts() == {kind: 1}


def test_tally_has_a_field_for_everything_counted() -> None:
    calls = [
        node
        for path in (ROOT / "precompiled").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    counted = {str(keyword.arg) for call in calls if call.func.attr == "count" for keyword in call.keywords}
    kinds = {ast.literal_eval(call.args[0]) for call in calls if call.func.attr == "count_reason"}
    assert {"hits", "misses", "swapped", "saved_s"} <= counted and kinds == {
        "fallbacks",
        "bypassed",
        "not_kept",
        "from_base",
        "not_served",
    }
    fields = set(wire.Tally.__struct_fields__)
    assert counted | kinds == fields - {"pid"}
    assert fields - {"pid"} <= set(wire.StatsReply.__struct_fields__), "what the daemon adds up, it tells"


@pytest.mark.fault("forks")
def test_forked_child_starts_with_zero_counts_and_keeps_its_graphs() -> None:
    ledger = Ledger()
    ledger.add(graph())
    ledger.count(hits=1)
    ledger._lock.acquire()  # at the time of a fork, another thread of the parent may hold the lock
    ledger.after_fork()
    assert not ledger.take_counts()
    assert len(ledger.reports()) == 1


def test_threads_lose_no_count() -> None:
    ledger = Ledger()
    taken: list[dict[str, Any]] = []

    def count() -> None:
        for _ in range(500):
            ledger.count(hits=1)
            ledger.count_reason("fallbacks", "x")
            taken.append(ledger.take_counts())

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts.get("hits", 0) for counts in taken) == 2000
    assert sum(counts.get("fallbacks", {}).get("x", 0) for counts in taken) == 2000
