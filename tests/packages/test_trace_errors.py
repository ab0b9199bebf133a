"""Tests that `explain` names the error of a trace that torch did not finish."""

from __future__ import annotations

from pathlib import Path

import pytest
from support_host import Host

pytestmark = pytest.mark.slow

PROGRAM = """\
import contextlib, sys
import torch
import precompiled
precompiled.enable()
torch._dynamo.config.suppress_errors = sys.argv[1] == "suppressed"

@torch.library.custom_op("trace_errors::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@double.register_fake
def _(x):
    raise KeyError("no fake implementation")

def step(x):
    return double(x) + 1

with contextlib.suppress(torch._dynamo.exc.TorchRuntimeError):
    assert torch.equal(torch.compile(step)(torch.ones(4)), torch.full((4,), 3.0)) and sys.argv[1] == "suppressed"
(report,) = precompiled.package_report()
assert report.state == "raised", report
"""


@pytest.mark.parametrize("errors", ["raised", "suppressed"])
def test_an_error_of_a_trace_is_explained(shared_host: Host, tmp_path: Path, errors: str) -> None:
    (file := tmp_path / "step.py").write_text(PROGRAM)
    shared_host.program(str(file), errors, env={"PRECOMPILED_PACKAGES": "program"}, forked=False).ended()
    text = shared_host.command("explain")
    assert (
        "no graph: torch failed to trace __main__.step (TorchRuntimeError: KeyError('no fake implementation')" in text
    )
    assert ("the function runs uncompiled" in text) == (errors == "suppressed")
