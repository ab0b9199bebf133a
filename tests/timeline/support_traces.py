"""Checks of traces by the rules of the Trace Event Format that Perfetto's importer follows."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

NEEDED = {
    "X": {"name", "cat", "pid", "tid", "ts", "dur"},
    "M": {"name", "pid", "tid", "args"},
    "s": {"id", "name", "cat", "pid", "tid", "ts"},
    "t": {"id", "name", "cat", "pid", "tid", "ts"},
    "f": {"id", "name", "cat", "pid", "tid", "ts", "bp"},
}


def slices(document: dict[str, Any], name: str = "") -> list[dict[str, Any]]:
    """Return the slices of a trace whose names begin with ``name``."""
    return [event for event in document["traceEvents"] if event["ph"] == "X" and event["name"].startswith(name)]


def arrows(document: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Return the slices along each arrow, in order. In the format, a point of an arrow belongs to the innermost slice
    around the point.
    """
    points: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] in "stf":
            points[event["id"]].append(event)
    found = []
    for id, mine in sorted(points.items()):
        assert [event["ph"] for event in mine] == ["s", *"t" * (len(mine) - 2), "f"], (id, mine)
        assert [event["ts"] for event in mine] == sorted(event["ts"] for event in mine), (id, mine)
        found.append([_around(document, event) for event in mine])
    return found


def _around(document: dict[str, Any], point: dict[str, Any]) -> dict[str, Any]:
    around = [
        event
        for event in slices(document)
        if (event["pid"], event["tid"]) == (point["pid"], point["tid"])
        and event["ts"] <= point["ts"] <= event["ts"] + event["dur"]
    ]
    assert around, f"an arrow ends nowhere: {point}"
    return max(around, key=lambda event: (event["ts"], -event["dur"]))


def check(document: dict[str, Any]) -> None:
    """Raise AssertionError if the trace violates the format."""
    named = set()
    rows: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in document["traceEvents"]:
        assert NEEDED[event["ph"]] <= event.keys(), event
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int), event
        if event["ph"] == "M":
            named.add((event["name"], event["pid"], event["tid"]))
        else:
            assert event["ts"] >= 0 and event.get("dur", 0) >= 0, event
            rows[event["pid"], event["tid"]].append(event)
    for (pid, tid), events in rows.items():
        assert ("process_name", pid, 0) in named and ("thread_name", pid, tid) in named, (pid, tid)
        ends: list[float] = []  # end times of the enclosing slices, the innermost last
        for event in sorted((event for event in events if event["ph"] == "X"), key=lambda e: (e["ts"], -e["dur"])):
            while ends and ends[-1] <= event["ts"]:
                ends.pop()
            end = event["ts"] + event["dur"]
            assert not ends or end <= ends[-1] + 1e-3, f"a slice does not nest: {event}"  # times are rounded to 1 ns
            ends.append(end)
    arrows(document)
