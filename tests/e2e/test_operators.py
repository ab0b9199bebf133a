"""Tests some of the operators for which torch has sample inputs, with a daemon. `make operators` tests all of them."""

from __future__ import annotations

import pytest

from benchmarks.operators import program, samples
from benchmarks.operators.table import Found, examine


@pytest.mark.slow
def test_operators_are_compiled_by_the_daemon_and_equal() -> None:
    rows = samples.rows(("float32", "bool"))[::100]
    rows += [("nn.functional.linear_cross_entropy.chunked", "float32")] if torch_has_it() else []
    found = examine(rows, print)
    assert found.answers.keys() == {*rows}
    assert (found.wrong(), found.graphs()[1]) == ([], {})
    assert found.states()["equal"] > len(rows) / 2


def torch_has_it() -> bool:
    return "nn.functional.linear_cross_entropy.chunked" in samples.operators()


def test_deviation_is_attributed_to_one_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deviation must be attributed to one operator, although eight operators are compiled in one function.

    In this test one operator raises, so the function has no result. A second operator is compiled in process. A third
    operator has a different result only in a function with other operators.
    """
    compiled: list[list[str]] = []

    def answers(run: program.Run) -> list[program.Answer]:
        names = [row[0] for row, _sample, _expected in run]
        compiled.append(names)
        raised = "raises" in names
        states = ["different" if name == "differs" and number else "equal" for number, name in enumerate(names)]
        reasons = ["custom-op"] if "in process" in names and not raised else []
        return [
            {
                "row": (name, "bool"),
                "state": "error" if raised else states[number],
                "why": "why",
                "graphs": 0 if number else 1,
                "reasons": [] if number else reasons,
            }
            for number, name in enumerate(names)
        ]

    monkeypatch.setattr(program, "_compiled", answers)
    names = ["a", "b", "raises", "c", "d", "differs", "e", "in process"]
    settled = program._settled([((name, "bool"), None, None) for name in names])
    found = {answer["row"][0]: answer for answer in settled}
    assert [*found] == names
    assert [name for name in names if found[name]["state"] == "error"] == ["raises"]
    assert [name for name in names if found[name]["reasons"]] == ["in process"]
    assert [name for name in names if found[name].get("among")] == ["differs"]
    assert ["a", "b"] in compiled
    results = Found({answer["row"]: answer for answer in settled})
    assert results.wrong() == [("raises", "bool"), ("differs", "bool")]
    assert results.in_process() == {"custom-op": [("in process", "bool")]}
    # Now plain torch.compile has the same deviation, so the deviation is not precompiled's error.
    results.plain[("differs", "bool")] = {"row": ("differs", "bool"), "state": "equal", "among": "why"}
    assert results.state(("differs", "bool")) == "as plain"
    again = Found()
    again.read(results.as_json())
    assert (again.states(), again.graphs()) == (results.states(), results.graphs())
