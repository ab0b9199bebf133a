"""Says how graphs ran and why functions were traced, in the same words for `explain`, `status` and `timeline`."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precompiled.core.errors import CRASHES_PROCESSES, SLOWER_THAN_EAGER
from precompiled.core.names import in_words, shorten_paths
from precompiled.core.reasons import Outcome, ReasonKind, outcome, read_reasons
from precompiled.core.words import human_seconds
from precompiled.packages.function_report import OTHER_PROGRAMS
from precompiled.store.artifact_format import Failure
from precompiled.store.run_records import NOT_SERVED, RunProcess, spans_of, traces, way

AUDITED = "audited"
# Headings above the causes of misses and of traces, for all commands.
WHY_COMPILED, WHY_TRACED = "Why graphs were compiled", "Why functions were traced"

# Maps the reason of a failure record to a finding of earlier processes. The compile of these graphs had succeeded.
BAD_CODE = {
    SLOWER_THAN_EAGER: "an earlier run found compiled code slower than eager code",
    "wrong-result": "an earlier run found a wrong result of compiled code",
    CRASHES_PROCESSES: "earlier processes crashed in compiled code",
}

IN_WORDS = {"switched-off": "bypassed by the program"}  # the code alone reads like the setting PRECOMPILED=0
NEW_PROGRAM = "this program has no package of the function yet, and none of its earlier runs is recorded"
NO_PACKAGE = "no package for its present source: the function is new or edited, or its package was removed"


def describe_reason(graph: Mapping[str, Any]) -> str:
    """Why a graph was not served: ``freezing: the weights are on a GPU``. "" if no reason is recorded."""
    return f"{graph['reason']}: {graph['message'].partition(chr(10))[0]}" if graph.get("reason") else ""


def describe_way(graph: Mapping[str, Any]) -> str:
    """How a graph runs: ``compiled in process (freezing)``. "" if the graph runs daemon-compiled code."""
    became, reason = way(graph), graph.get("reason", "")
    if became == "compiled":
        return ""
    said = NOT_SERVED.get(became, "pending")
    if became == "pending" and not reason and graph.get("message"):
        return str(graph["message"])  # an interrupted wait
    return f"{said} ({IN_WORDS.get(reason, reason)})" if reason else said


def is_miss(graph: Mapping[str, Any]) -> bool:
    """Whether a graph was a cache miss. False if the store was not read or had a failure record, or if a hit served the
    graph at first.
    """
    code = graph.get("reason", "")
    if graph.get("source") in ("hit", "package"):
        return False
    if not code or graph.get("source") == "swap" or any(span.what == "submit" for span in spans_of(graph)):
        return True
    # A graph without a submit was a miss in mode "lookup", or if the daemon could not be used. Two of the daemon's
    # reasons are excluded ("no-place" means that no store exists).
    reason = read_reasons().get(code)
    is_of_daemon = reason is not None and reason.kind is ReasonKind.DAEMON
    return code == "lookup-only" or (is_of_daemon and code not in ("key-quarantined", "no-place"))


def describe_record(graph: Mapping[str, Any]) -> str:
    """Say what an earlier process recorded, if a failure record decided how the graph runs. Otherwise ""."""
    code = graph.get("reason", "")
    if is_miss(graph) or graph.get("source") in ("hit", "package"):
        return ""
    if any(span.what in ("load", "check") for span in spans_of(graph)):
        return ""  # this process found the code slower or wrong
    reason = read_reasons().get(code)
    if code in BAD_CODE:
        return f"{BAD_CODE[code]} ({code})"
    is_failure = reason is not None and reason.kind is ReasonKind.FAILURE
    return f"an earlier compile failed ({code})" if is_failure or code == "key-quarantined" else ""


def describe_later(failure: Failure) -> str:
    """Say how later runs serve a graph with a failure record, and for how long."""
    how = "stay eager" if outcome(failure.reason, runs=False) is Outcome.EAGER else "compile the graph in process"
    lasts = human_seconds(max(0.0, failure.created + failure.ttl_s - time.time()))
    return f"For the next {lasts}, later runs {how} (setting failure_ttl_s)"


def describe_lack_of_calls(graph: Mapping[str, Any]) -> str:
    """Say that all calls of a compiled graph ran eager. "" if one ran compiled, or if no count is recorded (yet)."""
    if way(graph) != "compiled" or graph.get("calls_compiled", 1):
        return ""
    return "compiled, but all calls ran eager" if graph.get("calls_eager") else "compiled, but never called"


@dataclass(frozen=True)
class Traced:
    """One trace of a function by Dynamo. ``state``: as in packages/function_report.py. "" if packages were off."""

    name: str
    seconds: float
    state: str
    why: str
    is_helper: bool  # a function of Python or torch without a graph of its own


def traced_functions(process: RunProcess, *, is_new: bool | None = None, change: str = "") -> list[Traced]:
    """The traces of a process, in the order of its reports. Traces without a report come last.

    ``is_new``: whether no earlier run of the program is recorded; None if unknown. ``change``: how the program differs
    from its previous run (program_changes.py); "" if unknown.
    """
    seconds: dict[str, list[float]] = defaultdict(list)
    for name, spent in traces(process):
        seconds[name].append(spent)
    graphs = {graph.get("name", "").partition(" [")[0] for graph in process.graphs.values()}
    is_new = is_new and not any(graph.get("source") == "package" for graph in process.graphs.values())
    found = []
    for number, item in enumerate(process.functions):
        name = item["name"]
        spent = seconds[name].pop(0) if seconds[name] else 0.0
        why = _why(process.functions[:number], item, is_new, change)
        found.append(Traced(name, spent, item["state"], why, _is_helper(name, graphs)))
    return found + [
        Traced(name, spent, "", "", _is_helper(name, graphs)) for name, left in seconds.items() for spent in left
    ]


def _is_helper(name: str, graphs: set[str]) -> bool:
    is_library = name.partition(".")[0] in {*sys.stdlib_module_names, "torch"} - {"__main__"}
    return is_library and not any(name.endswith(f".{graph}") for graph in graphs)


def _why(before: Sequence[Mapping[str, object]], item: dict[str, Any], is_new: bool | None, change: str) -> str:
    """Explain why a function was traced. ``before``: the process's earlier traces."""
    if item["state"] == "raised":
        return f"torch failed to trace it: {item['message']}"
    if item["state"] == "interrupted":
        return str(item["message"])
    reasons = item["reasons"] if item["state"] != AUDITED else ()  # an audit's reasons are about other entries
    if reasons == [OTHER_PROGRAMS] and (is_new or change):
        reasons = [NEW_PROGRAM if is_new else change]
    why, code = "".join(reasons[:1]), item["reason"]  # the first reason compares with the nearest entry
    first_line = str(why or item["message"]).partition("\n")[0]
    if first_line and not why and item["state"] == "recorded":  # the package says why Dynamo skips the function
        first_line = f"it runs uncompiled: {first_line}"
    if code and not first_line.startswith(f"{code}:"):  # a code says why no package was written
        first_line = f"{first_line}; no package was written ({code})" if why else f"{code}: {first_line}"
    is_first = item["state"] == "recorded" and item["name"] not in {other["name"] for other in before}
    if first_line or not is_first:
        return shorten_paths(in_words(first_line))
    return NEW_PROGRAM if is_new else NO_PACKAGE
