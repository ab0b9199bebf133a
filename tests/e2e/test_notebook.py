"""Tests a notebook that is run, restarted and run again, with nbclient, a real Jupyter kernel and a real daemon."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from support_host import Host

CELLS = [
    "%load_ext precompiled",
    "import torch, precompiled\n\ndef scaled(x):\n    return (x * 2.0).relu() + 1\n\ncompiled = torch.compile(scaled)",
    "out = compiled(torch.ones(8, 16))",
    "assert precompiled.wait(300)\ntorch.testing.assert_close(compiled(torch.ones(8, 16)), out)",
    # Once the graph is compiled, a thread updates the line below the earlier cell. The next cell waits for this thread.
    "import threading\nfor thread in threading.enumerate():\n"
    "    if thread.name == 'precompiled-notebook':\n        thread.join()",
    "%precompiled",
    "%precompiled explain",
    "%precompiled explain no-daemon",
    "print(precompiled.package_report()[-1].state, [graph.source for graph in precompiled.report()])",
    "%unload_ext precompiled",
]


def run(host: Host, cells: list[str]) -> list[str]:
    """Run the cells in a new Jupyter kernel. Returns the output that the kernel shows below each cell."""
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    client = NotebookClient(made, timeout=400, kernel_name="python3", resources={"metadata": {"path": str(host.root)}})
    client.execute(env=host.environment({"PRECOMPILED_PACKAGES": "program", "IPYTHONDIR": str(host.root / "ipython")}))
    shown = []
    for cell in made.cells:
        parts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
        assert not any(output.output_type == "error" for output in cell.outputs), cell.outputs
        shown.append("".join(parts))
    return shown


@pytest.mark.slow
def test_notebook_that_is_run_again_traces_nothing(served: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    # The Jupyter kernel must not write into the user's own folders.
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(served.root / "jupyter"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(served.root / "jupyter-run"))
    monkeypatch.setenv("IPYTHONDIR", str(served.root / "ipython"))
    (served.root / "jupyter").mkdir()
    first = run(served, CELLS)
    assert first[2].startswith("precompiled: 1 graph: 1 compiled, after "), first
    assert "scaled [0/0]  swap  " in first[5] and "traced: __main__.scaled" in first[5], first
    assert first[6].startswith("notebook, process-") and "of 1 graph: no hits, 1 new graph" in first[6], first
    assert "no-daemon: no daemon runs" in first[7], first
    assert first[8].strip() == "recorded ['swap']"
    assert first[0] == first[1] == first[3] == first[9] == ""

    # A cell that has only a %precompiled command is not part of the program, so the notebook without it gets cache
    # hits.
    again = run(served, [cell for cell in CELLS if cell != "%precompiled explain"])
    assert again[2] == "precompiled: 1 graph: 1 found in the store (1 not traced)", again
    assert again[7].strip() == "used ['package']" and "traced:" not in again[5]

    edited = run(served, [cell.replace("2.0", "3.0") for cell in CELLS])
    assert "1 edit at line 4 of a cell" in edited[6] and "x * 2.0" in edited[6] and "x * 3.0" in edited[6], edited[6]
    assert edited[8].strip() == "recorded ['swap']"


@pytest.mark.slow
def test_notebook_extension_says_that_precompiled_is_off(served: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECOMPILED", "0")
    monkeypatch.setattr(Host, "environment", lambda self, extra=None: {**os.environ})
    assert run(served, ["%load_ext precompiled"]) == [
        "precompiled is off: PRECOMPILED=0 (or off, false, no), or PRECOMPILED_MODE=off, is set\n"
    ]
    assert not Path(served.root / "store" / "runs").exists()
