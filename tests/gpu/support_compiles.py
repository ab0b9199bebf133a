"""Support: compiles graphs in the test process as a worker does."""

from __future__ import annotations

from typing import Any

import torch._dynamo

from precompiled.torch_internals.graph import ambient_modes, compiler_config, graph_codec
from precompiled.torch_internals.worker.compile_graph import CompileResult, compile_graph


def compiled(program: dict[str, Any]) -> CompileResult:
    """Compile a serialized graph. ``program``: the result of ``capture.parse``."""
    torch._dynamo.reset()
    with (
        ambient_modes.process_wide(program["modes"]),
        ambient_modes.thread_local(program["modes"]),
        compiler_config.applied(program["configs"], 1),
    ):
        return compile_graph(
            graph_codec.decode(program["graph"]), program["inputs"], program["hints"], program["floats"]
        )
