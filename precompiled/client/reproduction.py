"""Compares eager and compiled results of a stored graph on random inputs. `precompiled cache show --repro` writes a
script that calls ``main``.
"""

from __future__ import annotations

import base64
import contextvars
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precompiled.client import native
from precompiled.core.errors import CompileFailed, PrecompiledError
from precompiled.core.program_data import CaptureState
from precompiled.graph import capture
from precompiled.store import artifact_format as fmt
from precompiled.store import reading
from precompiled.torch_internals.client.load_artifact import load_bundle
from precompiled.torch_internals.eager import random_inputs
from precompiled.torch_internals.eager.stand_in import StandIn
from precompiled.torch_internals.eager.trial_runs import Trial
from precompiled.torch_internals.graph import ambient_modes, graph_codec
from precompiled.torch_internals.user_code import custom_ops, program_classes
from precompiled.torch_internals.worker.compile_graph import compile_here

if TYPE_CHECKING:
    from precompiled.core.program_data import ProgramData


def main(packed: str, arguments: Sequence[str]) -> int:
    """Compare, and print the differences. Returns the exit status: 0 without differences, 1 with some, 2 if the
    comparison is impossible.

    ``packed``: base64 of a packed program. ``arguments``: the directory of an artifact whose code is compared. Without
    it, Inductor compiles the graph in this process.
    """
    program = capture.parse(fmt.unpack_program(base64.b64decode(packed)))
    try:
        differences = _differences(program, Path(arguments[0]) if arguments else None)
    except PrecompiledError as error:
        sys.stdout.write(f"The graph cannot be compared: {error}\n")
        return 2
    for difference in differences:
        sys.stdout.write(f"{difference}\n")
    sys.stdout.write("" if differences else "No difference: all results are equal up to rounding\n")
    return 1 if differences else 0


def _differences(program: ProgramData, artifact: Path | None) -> list[str]:
    if program["modes"]["groups"] or "meshes" in program["inputs"]:
        raise CompileFailed("it needs the other ranks", code="collective")
    custom_ops.load(capture.modules(program))
    classes = program_classes.create_classes(program["inputs"].get("classes", ()))
    with ambient_modes.process_wide(program["modes"]), ambient_modes.thread_local(program["modes"]):
        inputs = random_inputs.make(program["inputs"], program["hints"], program["floats"])
        trial = Trial(StandIn(graph_codec.decode(program["graph"])), inputs, program.get("about", {}).get("inputs"))
        if why_not := trial.why_not():
            raise CompileFailed(why_not, code="no-stand-in")
        compiled = _loaded(artifact, program, classes) if artifact else compile_here(program, classes, ())[0]
        return [str(difference) for difference in trial.differences(compiled)]


def _loaded(path: Path, program: ProgramData, classes: program_classes.Classes) -> Callable[..., Any]:
    artifact, contents = reading.read_elsewhere(path)
    state = CaptureState(
        modes=program["modes"],
        device="cpu" if artifact.manifest.device == "cpu" else "cuda:0",
        cudagraphs=False,
        size_inputs=[],
        modules={},
        classes=classes,
        context=contextvars.copy_context(),
    )
    with native.files(artifact, contents) as mapped:
        return load_bundle(contents[fmt.BUNDLE], mapped, state, path.name[:12])
