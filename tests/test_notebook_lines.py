"""Tests of the line that a notebook shows about a cell's graphs. tests/e2e/test_notebook.py tests a real kernel."""

from __future__ import annotations

from typing import Any

import pytest

from precompiled import notebook
from precompiled.client.ledger import GraphReport
from precompiled.packages import main_program


def graph(**fields: Any) -> GraphReport:
    return GraphReport(**{"id": "1", "name": "f [0/0]", **fields})


HIT, PACKAGE = graph(state="compiled", source="hit"), graph(state="compiled", source="package")
PENDING = graph(state="pending")


@pytest.mark.parametrize(
    ("graphs", "said"),
    [
        ([HIT], "1 graph: 1 found in the store"),
        (
            [HIT, PACKAGE, PENDING],
            "3 graphs: 2 found in the store (1 not traced), 1 compiles in the background (eager until then)",
        ),
        ([PENDING, PENDING], "2 graphs: 2 compile in the background (eager until then)"),
        ([graph(state="compiled", source="swap", swapped_after_s=12.0)], "1 graph: 1 compiled, after 12.0 s"),
        ([graph(state="bypassed", source="inline", reason="freezing")], "1 graph: f [0/0]: bypassed (freezing)"),
    ],
)
def test_line_summarises_the_graphs_of_a_cell(graphs: list[GraphReport], said: str) -> None:
    assert notebook.summarise_graphs(graphs) == said


def test_report_says_whose_calls_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    bypassed = graph(state="bypassed", source="inline", reason="switched-off", message="why")
    monkeypatch.setattr(notebook, "_reports", lambda: [HIT, bypassed])
    assert notebook.report().splitlines()[1:3] == [
        "  f [0/0]  hit  0 calls eager, 0 compiled",
        "  f [0/0]  inline  calls not counted    switched-off: why",
    ]


@pytest.mark.parametrize(
    ("cell", "asks"),
    [
        ("get_ipython().run_line_magic('precompiled', '')\n", True),
        ("get_ipython().run_line_magic('precompiled', 'explain forward')\n" * 2, True),
        ("get_ipython().run_line_magic('precompiled', '')\nx = 1\n", False),
        ("get_ipython().run_line_magic('load_ext', 'precompiled')\n", False),
        ("x = 'get_ipython()'", False),
        ("", False),
    ],
)
def test_cells_that_only_query_precompiled_are_not_part_of_the_program(cell: str, asks: bool) -> None:
    assert bool(main_program._ASKS.fullmatch(cell)) is asks
