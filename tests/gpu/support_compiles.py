"""Compiles in the tests' own process, as a worker makes them."""

from __future__ import annotations

from typing import Any

import torch._dynamo

from precompiled.torch_internals import codec, configs, modes
from precompiled.torch_internals.compile import CompileResult, compile_graph


def compiled(program: dict[str, Any]) -> CompileResult:
    """``program``: as ``capture.parse`` gives it."""
    torch._dynamo.reset()
    with (
        modes.process_wide(program["modes"]),
        modes.thread_local(program["modes"]),
        configs.applied(program["configs"], 1),
    ):
        return compile_graph(codec.decode(program["graph"]), program["inputs"], program["hints"], program["floats"])
