"""Tests of the timeline's page for graphs that no artifact serves, and for functions that were traced."""

from __future__ import annotations

import html
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support_host import Host
from support_traces import slices

from precompiled.cli import outcomes
from precompiled.core.spans import IN_PROCESS, WAITED, Span
from precompiled.packages.function_report import OTHER_PROGRAMS
from precompiled.store import run_records
from precompiled.timeline.events import trace
from precompiled.timeline.facts import Facts
from precompiled.timeline.page import page
from precompiled.timeline.start import by_name, start

PROGRAM = """\
import torch
import precompiled

def f(x):
    return (x * 2.0).relu() + 1

def g(x):
    return (x - 3.0).tanh()

def h(x):
    return (x / 5.0).sigmoid()

x = torch.ones(8, 16)
compiled = [
    torch.compile(f, options={"post_grad_custom_post_pass": lambda graph: None}),
    precompiled.bypass(torch.compile(g)),
]
for _ in range(3):
    for one in compiled:
        one(x)
graph = torch.fx.symbolic_trace(h)
torch._inductor.compile(graph, [x])(x)
"""
REASONS = ("custom-pass", "switched-off", "direct-call")


@pytest.mark.slow
def test_graphs_compiled_in_process_have_bars_with_their_reasons(host: Host) -> None:
    file = host.project(train=PROGRAM) / "train.py"
    written = host.root / "t.html"
    host.program(
        "-m", "precompiled", "timeline", "-o", str(written), "--", sys.executable, str(file), forked=False
    ).ended()
    text = html.unescape(written.read_text())
    for reason in REASONS:
        (seconds,) = re.findall(rf"<title>compiled in process: {reason}: ([\d.]+) s</title>", text)
        assert float(seconds) > 0
        assert re.search(rf"<td>compiled in process</td>.*<td>{reason}: .+?</td>", text)
    spans = slices(json.loads(written.with_suffix(".json").read_text()), IN_PROCESS)
    assert sorted(span["args"]["reason"] for span in spans) == sorted(REASONS)
    # `explain` gives the same reasons for graphs and functions.
    said = host.command("explain")
    for shown in re.findall(r"<td>((?:custom-pass|switched-off|direct-call): [^<]*)</td>", text):
        assert shown in said


def process(graph: dict[str, object]) -> run_records.RunProcess:
    spans = [("f", Span("trace", 10.0, 2.0, 7))]
    found = run_records.RunProcess(0, 1, 7, "", "a.py", [], "", "", 10.0, {"1": {"id": "1", "at": 1.0, **graph}})
    found.ended, found.frames, found.second_calls = 60.0, spans, [13.0]
    return found


def test_a_start_with_an_unknown_compile_time_claims_no_gain() -> None:
    pending = process({"name": "f", "state": "pending", "spans": [["submit", 11.0, 0.5, 7]]})
    text = page(Facts(0.0, 60.0, [pending], [], {}), ["python", "a.py"], 60.0, "t.json")
    assert "<h1>The first step ended after 3.0 s, and 1 graph was not compiled yet when the program ended after" in text
    assert "a.py: until the program ended" in text and "until all graphs run compiled" not in text
    assert not re.search(r"s (earlier|later)</b>", text)
    assert text.count("plain, empty caches (at least)") == 2, "in the picture and in a tile"


def test_a_first_run_is_compared_only_if_its_compile_time_is_known() -> None:
    """In a first run, the cache of plain torch.compile would be empty."""
    found = process({"name": "f", "state": "pending", "spans": [["submit", 11.0, 0.5, 7]]})
    found.functions = [{"name": "f", "state": "recorded", "reason": "", "message": "", "reasons": []}]

    def shown() -> str:
        facts = Facts(0.0, 60.0, [found], [], {}, [], frozenset([found.identity]))
        return html.unescape(page(facts, ["python", "a.py"], 60.0, "t.json"))

    pending = shown()
    assert "<h1>First recorded run of this program: the first step ended after 3.0 s, and 1 graph was not" in pending
    assert not re.search(r"\bplain\b", pending) and outcomes.NEW_PROGRAM in pending
    found.graphs["1"] |= {"state": "compiled", "source": "swap", "compile_s": 4.0}
    found.graphs["1"]["spans"].append(["load", 17.0, 0.1, 8])
    compiled = shown()
    gain = r"<b>[\d.]+ s (earlier|later)</b> than with plain torch.compile"
    assert re.search(rf"<h1>First recorded run of this program: the first step ended after 3.0 s, {gain} \(", compiled)
    assert compiled.count("plain, empty caches") == 2 and "its cache full" not in compiled
    found.graphs["1"] |= {"source": "hit"}
    assert re.search(rf"<h1>The first step ended after 3.0 s, {gain} and empty caches \(", shown())


def test_a_start_without_gain_claims_none() -> None:
    inline = process({"name": "f", "state": "bypassed", "source": "inline", "reason": "freezing", "message": "m"})
    inline.graphs["1"]["spans"] = [[IN_PROCESS, 10.5, 1.5, 7]]
    text = page(Facts(0.0, 60.0, [inline], [], {}), ["python", "a.py"], 60.0, "t.json")
    assert "The first step ended after 3.0 s, as with plain torch.compile and empty caches<" in text


def test_a_compile_that_raised_has_a_bar_and_no_compiled_code() -> None:
    raised = process({"name": "f", "state": "bypassed", "reason": "no-compiler", "message": "", "spans": []})
    raised.graphs["1"]["spans"] = [[IN_PROCESS, 10.5, 1.0, 7]]
    facts = Facts(0.0, 60.0, [raised], [], {})
    assert start(raised, facts).in_process == [("compiled in process: no-compiler", 0.5, 1.0)]
    assert "compiled in process: no-compiler" in page(facts, ["a"], 1.0, "t.json")


def test_time_in_wait_is_not_shown_as_eager_steps() -> None:
    waits = process({"name": "f", "state": "compiled", "source": "swap", "swapped_after_s": 5.0, "spans": []})
    waits.graphs["1"]["spans"] = [["submit", 12.0, 0.5, 7], ["load", 17.0, 0.1, 8]]
    waits.waits = [Span(WAITED, 13.0, 4.1, 7)]
    facts = Facts(0.0, 60.0, [waits], [], {})
    spent = by_name(start(waits, facts).sections)
    assert spent["waiting for the artifact"] == pytest.approx(4.1) and spent["eager steps"] == pytest.approx(0.5)
    assert [event["dur"] for event in trace(facts)["traceEvents"] if event["name"] == WAITED] == [pytest.approx(4.1e6)]


def test_other_programs_are_no_edit_of_a_new_program() -> None:
    found = process({"name": "f", "state": "compiled", "source": "hit"})
    for reasons, is_new, why in (
        ([OTHER_PROGRAMS], None, OTHER_PROGRAMS),
        ([OTHER_PROGRAMS], False, OTHER_PROGRAMS),
        ([OTHER_PROGRAMS], True, outcomes.NEW_PROGRAM),
        ([], True, outcomes.NEW_PROGRAM),
    ):
        found.functions = [{"name": "f", "state": "recorded", "reason": "", "message": "", "reasons": reasons}]
        assert [item.why for item in outcomes.traced_functions(found, is_new=is_new)] == [why]
    found.graphs["1"]["source"] = "package"  # a package of the program, whose earlier runs are no longer recorded
    assert [item.why for item in outcomes.traced_functions(found, is_new=True)] == [outcomes.NO_PACKAGE]


@pytest.mark.parametrize(
    ("report", "why"),
    [
        (("recorded", "", "", []), outcomes.NO_PACKAGE),
        (("recorded", "", "", ["L['n']: 2 here, 3 when it was traced"]), "n: 2 here, 3 when it was traced"),
        (("recorded", "", "an error was suppressed", []), "it runs uncompiled: an error was suppressed"),
        (("traced", "package-graph", "a graph is for this process", []), "package-graph: a graph is for this process"),
        (("traced", "custom-op", "it", ["custom-op: it"]), "custom-op: it"),
        (("traced", "package-graph", "it", ["n: 2 here"]), "n: 2 here; no package was written (package-graph)"),
    ],
)
def test_timeline_and_explain_give_one_reason_for_a_trace(
    report: tuple[str, str, str, list[str]], why: str, tmp_path: Path
) -> None:
    found = process({"name": "f", "state": "compiled", "source": "hit"})
    state, reason, message, reasons = report
    found.functions = [vars(SimpleNamespace(name="f", state=state, reason=reason, message=message, reasons=reasons))]
    assert [(trace.name, trace.seconds, trace.why) for trace in outcomes.traced_functions(found)] == [("f", 2.0, why)]
    assert f"<td>{html.escape(why)}</td>" in page(Facts(0.0, 60.0, [found], [], {}), ["a"], 1.0, "t.json")
