"""Some of the operators that torch has samples for, through a daemon; `make operators` runs all."""

from __future__ import annotations

import pytest

from benchmarks.operators import samples
from benchmarks.operators.table import examine


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
