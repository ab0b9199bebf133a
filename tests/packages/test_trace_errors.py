"""Tests that `explain` names the error of a trace that torch did not finish."""

from __future__ import annotations

import json
import re
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
assert [report.state for report in precompiled.package_report()] == ["raised"] * (sys.argv[2] == "program")
"""


@pytest.mark.parametrize("packages", ["program", "off"])
@pytest.mark.parametrize("errors", ["raised", "suppressed"])
def test_an_error_of_a_trace_is_explained(shared_host: Host, tmp_path: Path, errors: str, packages: str) -> None:
    (file := tmp_path / "step.py").write_text(PROGRAM)
    shared_host.program(str(file), errors, packages, env={"PRECOMPILED_PACKAGES": packages}, forked=False).ended()
    text = shared_host.command("explain")
    assert (
        "no graph: torch failed to trace __main__.step (TorchRuntimeError: KeyError('no fake implementation')" in text
    )
    assert ("the function runs uncompiled" in text) == (errors == "suppressed")


INTERRUPTED = """\
import contextlib, os, signal, sys
import torch
import precompiled
precompiled.enable()

@torch.library.custom_op("trace_errors::slow", mutates_args=())
def slow(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@slow.register_fake
def _(x):
    os.kill(os.getpid(), signal.SIGINT)
    return torch.empty_like(x)

def step(x):
    return slow(x) + 1

with contextlib.suppress(KeyboardInterrupt):
    torch.compile(step)(torch.ones(4))
    sys.exit("not interrupted")
"""


@pytest.mark.parametrize("packages", ["program", "off"])
def test_an_interrupted_trace_is_explained(shared_host: Host, tmp_path: Path, packages: str) -> None:
    (file := tmp_path / "slow.py").write_text(INTERRUPTED)
    shared_host.program(str(file), env={"PRECOMPILED_PACKAGES": packages}, forked=False).ended()
    text = shared_host.command("explain")
    assert "no graph: interrupted while Dynamo traced __main__.step (KeyboardInterrupt)" in text
    assert re.search(r"__main__\.step  [\d.]+ m?s  interrupted  KeyboardInterrupt", text), text


ENDED = """\
import torch
import precompiled
precompiled.enable()

@torch.compile
def step(x):
    print("loads")  # a graph break
    raise ValueError("no data\\nat all")

step(torch.ones(4))
"""


def test_an_exception_that_ends_the_program_before_its_first_graph_is_named(shared_host: Host, tmp_path: Path) -> None:
    (file := tmp_path / "ended.py").write_text(ENDED)
    shared_host.program(str(file), forked=False).ended(status=1)
    assert "no graph: the program ended with ValueError: no data before its first graph" in shared_host.command(
        "explain"
    )


BREAKS = """\
import contextlib, sys
import torch
import precompiled
precompiled.enable()

@torch.compile(fullgraph=True)
def breaks(x):
    torch._dynamo.graph_break()
    return x + 1

@torch.compile
def graph_then_error(x):
    y = x * 2
    torch._dynamo.graph_break()
    raise ValueError("of the program")

@torch.compile(backend="eager", fullgraph=True)
def of_another_backend(x):
    torch._dynamo.graph_break()
    return x + 1

for function, error in (
    (breaks, torch._dynamo.exc.Unsupported),
    (graph_then_error, ValueError),
    (of_another_backend, torch._dynamo.exc.Unsupported),
):
    with contextlib.suppress(error):
        function(torch.ones(4))
        sys.exit("no error")
precompiled.disable()
from torch._dynamo import convert_frame
assert convert_frame.ConvertFrame.__call__.__module__ == "torch._dynamo.convert_frame"
"""


@pytest.mark.parametrize("packages", ["program", "off"])
def test_a_graph_break_in_a_full_graph_is_explained(shared_host: Host, tmp_path: Path, packages: str) -> None:
    (file := tmp_path / "breaks.py").write_text(BREAKS)
    shared_host.program(str(file), env={"PRECOMPILED_PACKAGES": packages}, forked=False).ended()
    (process, *_) = json.loads(shared_host.command("explain", "--json"))["processes"]
    raised = {item["name"]: item["message"] for item in process["functions"] if item["state"] == "raised"}
    assert list(raised) == ["__main__.breaks"]
    assert raised["__main__.breaks"].startswith("Unsupported: Call to `torch._dynamo.graph_break()`")
