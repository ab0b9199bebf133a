"""Tests that tools/prose.py, which `make lint` runs, forbids commands that install the unrelated project on PyPI."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "prose.py"
spec = importlib.util.spec_from_file_location("prose", TOOL)
assert spec is not None and spec.loader is not None
prose = importlib.util.module_from_spec(spec)
spec.loader.exec_module(prose)


@pytest.mark.parametrize(
    "line",
    [
        "    pip install precompiled",
        "RUN pip install --no-cache-dir torch precompiled",
        "`pip install 'precompiled[s3]'`",
        "python -m pip install -U precompiled==0.1.0  # for root",
        "uv tool install --overrides no-torch.txt precompiled",
        "uv pip install precompiled>=0.1",
        "pipx install precompiled",
        "uv add precompiled",
    ],
)
def test_command_that_installs_the_unrelated_project_is_found(line: str) -> None:
    (found,) = prose.installs_unrelated("page.md", f"first line\n{line}\n")
    assert found.line == 2 and "torch-precompiled" in found.problem


@pytest.mark.parametrize(
    "line",
    [
        "    pip install .",
        "pip install torch torch-precompiled",
        "pip install 'torch-precompiled[s3]'",
        "pip install '.[farm]'     # in a clone of precompiled",
        "`pip install '.[metrics]'` in a clone of precompiled",
        "/opt/precompiled/bin/pip install .",
        "pip install ./precompiled/dist/wheel.whl",
        "uv run precompiled status",
    ],
)
def test_other_commands_are_allowed(line: str) -> None:
    assert not list(prose.installs_unrelated("page.md", line))
