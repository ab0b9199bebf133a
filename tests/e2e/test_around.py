"""Tests of calls to Inductor that bypass torch.compile.

torch must handle these calls as it does without precompiled. precompiled only counts them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support_host import TIMEOUT_S, Host
from support_slow import everyday_or_slow

pytestmark = pytest.mark.integration

PROGRAM = Path(__file__).parent.parent / "programs" / "around_program.py"
WAYS = {
    "aot_compile": "ahead-of-time",
    "aot_compile_by_name": "ahead-of-time",
    "aot_compile_of_a_module": "ahead-of-time",
    "caching_precompile": "ahead-of-time",
    "aot_inductor": "ahead-of-time",
    "standalone_compile": "direct-call",
    "standalone_compile_in_a_backend": "direct-call",
    "inductor_compile": "direct-call",
    "compiled_autograd": "direct-call",
}
SLOW = {"aot_inductor", "aot_compile_of_a_module"}


def run(host: Host, way: str, **env: str) -> list[list[Any]]:
    found: list[list[Any]] = host.program(str(PROGRAM), way, env=env).result()
    return found


@pytest.mark.reason("ahead-of-time", "direct-call")
@pytest.mark.parametrize("way", everyday_or_slow(WAYS, WAYS.keys() - SLOW))
def test_call_that_bypasses_torch_compile_is_left_to_torch_and_counted(shared_host: Host, way: str) -> None:
    before = shared_host.stats().bypassed.get(WAYS[way], 0)
    assert run(shared_host, way) == [["bypassed", "inline", WAYS[way]]]
    assert shared_host.stats().bypassed.get(WAYS[way], 0) == before + 1


def test_disabled_precompiled_counts_nothing(shared_host: Host) -> None:
    assert run(shared_host, "inductor_compile", PRECOMPILED="0") == []


def test_disable_restores_the_functions_of_inductor() -> None:
    program = """
import sys, torch, precompiled
precompiled.enable()
import torch._inductor.compile_fx as module
assert hasattr(module.compile_fx, "__wrapped__")
precompiled.disable()
assert not hasattr(module.compile_fx, "__wrapped__")
precompiled.enable(); precompiled.enable()
assert not hasattr(module.compile_fx.__wrapped__, "__wrapped__")
assert "exec_module" not in vars(module.__spec__.loader)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=TIMEOUT_S)
