"""Tests of the search for the source line that sets a mode, a setting or an environment variable."""

from __future__ import annotations

from pathlib import Path

import pytest
from support_programs import changed, put

from precompiled.cli import setters
from precompiled.graph.advice import Cause

SOURCE = """\
import os, torch
import torch._inductor.config as config
os.environ["A"] = "1"
os.environ.setdefault("B", "1")
os.environ.update({"C": "1"})
os.environ.update(D="1")
print(os.environ["E"])
config.triton.cudagraphs = True
config.max_fusion_size = 7
torch._inductor.config.patch(epilogue_fusion=False)
torch.compile(f, options={"max_autotune": True})
torch.compile(g, mode="reduce-overhead")
torch.compile(g, mode="default")
torch.set_num_threads(3)

@torch.no_grad()
def decorated():
    model(x)

def plain():
    with open("f"), torch.autocast("cpu"):
        model(x)
    with torch.autocast("cpu"):
        pass
"""


@pytest.mark.parametrize(
    ("kind", "name", "called", "expected"),
    [
        ("variable", "A", 0, [3]),
        ("variable", "B", 0, [4]),
        ("variable", "C", 0, [5]),
        ("variable", "D", 0, [6]),
        ("variable", "E", 0, []),
        # Line 12 has mode=, which sets several settings. The search must find the line for each of these settings.
        ("setting", "inductor.triton.cudagraphs", 0, [8, 12]),
        ("setting", "inductor.max_fusion_size", 0, [9, 12]),
        ("setting", "inductor.epilogue_fusion", 0, [10, 12]),
        ("setting", "inductor.max_autotune", 0, [11, 12]),
        ("mode", "threads", 0, [14]),
        ("mode", "grad", 18, [16]),
        ("mode", "grad", 0, [16]),
        ("mode", "autocast", 22, [21]),
        ("mode", "autocast", 0, [21, 23]),
        ("mode", "sdp.flash", 0, []),
        ("mode", "", 0, []),
    ],
)
def test_the_setting_line_is_found(tmp_path: Path, kind: str, name: str, called: int, expected: list[int]) -> None:
    file = tmp_path / f"train_{kind}.py"
    file.write_text(SOURCE)
    calls = [[str(file), called, "f", "model(x)"]] if called else []
    program = changed(put("about", "calls", calls))
    cause = Cause(kind, "", "", set_by=name)
    found = setters.lines(program, cause, [str(file)])
    assert sorted(line.line for line in found) == expected
    assert all(line.code == SOURCE.splitlines()[line.line - 1].strip() for line in found)


def test_unreadable_files_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text("def f(:\n")
    files = [str(tmp_path / "odd.py"), str(tmp_path / "none.py"), "<string>", torch_file()]
    assert setters.lines(changed(put("about", {})), Cause("mode", "", "", set_by="grad"), files) == []


def torch_file() -> str:
    from importlib.util import find_spec

    spec = find_spec("torch")
    assert spec is not None and spec.origin is not None
    return spec.origin
