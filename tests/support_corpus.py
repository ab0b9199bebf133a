"""Support: runs the corpus (programs/corpus_program.py) on a host, and reports the rows that deviate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support_host import TIMEOUT_S, Host

PROGRAM = Path(__file__).parent / "programs" / "corpus_program.py"
Answer = dict[str, dict[str, Any]]

# Rows that torch can compile but that are not served. At most three are allowed.
BYPASSED = {
    # The forward then takes a state object of this process (torch.fx.experimental._backward_state).
    "compiled_autograd_module_hooks": {"user-function"},
}

# Additional rows on torch 2.11, where DTensors describe themselves differently (docs/decisions/0040).
BYPASSED_ON_2_11 = {"distributed_tensor": {"unsupported-input", "unsupported-argument", "user-function"}}

# Rows with a frame that no package holds and that each process traces, with the reasons in package_report().
TRACED: dict[str, set[str]] = {
    "a_float_that_changes": {"package-global"},  # it became an input of the graph
    "default_device": {"package-mode"},
    # Their weights are tensors of the process instead of inputs of the graph.
    **{f"frozen_{name}": {"package-graph"} for name in ("linear", "convolution")},
    # The frame after the break was recorded while the graph ran eager, where outputs are views.
    "views_of_one_tensor_across_a_graph_break": {""},
    # Their forwards come from packages. Compiled autograd itself creates the graphs of the backwards in each process.
    **{
        f"compiled_autograd_{name}": {"package-graph"}
        for name in (
            "plain",
            "sizes",
            "custom",
            "autocast_off_inside",
            "accumulation",
            "retained_graph",
            "hooks",
            "module_hooks",
            "saved_tensor_hooks",
        )
    },
    "compiled_autograd_by_configuration": {"package-mode"},
    # Parameters and state, which the trace creates, are not inputs of the graph. The frames belong to one optimizer.
    **{
        f"optimizer_{name}": {"package-graph", "package-not-portable"}
        for name in ("sgd", "adam", "adam_foreach", "adamw", "adamw_tensor_lr", "rmsprop", "adagrad")
    },
}


def traced(answer: Answer) -> dict[str, list[Any]]:
    """Rows with frames that no package served, and these frames."""
    found = {
        name: [frame for frame in row["frames"] if frame[1] not in ("used", "skipped")] for name, row in answer.items()
    }
    return {name: frames for name, frames in found.items() if frames}


def run(
    host: Host,
    *names: str,
    python: str | None = None,
    program: Path = PROGRAM,
    env: Mapping[str, str] | None = None,
) -> Answer:
    """Run all rows, or the named ones, in one process. A warning of precompiled may be an error in it."""
    started = host.program(str(program), *names, env=env, python=python, forked=program == PROGRAM)
    found: Answer = started.result(timeout_s=4 * TIMEOUT_S)
    return found


def wrong(answer: Answer) -> dict[str, str]:
    """Rows whose results differ from eager's."""
    return {name: row["error"] for name, row in answer.items() if row["error"]}


def not_served(answer: Answer, *sources: str) -> dict[str, Any]:
    """Rows with a graph whose source is not in ``sources`` ("swap", "hit"), except those in BYPASSED."""
    return {
        name: (row["graphs"], row["messages"], row["compiles"])
        for name, row in answer.items()
        if name not in BYPASSED
        and (not row["graphs"] or row["compiles"] or any(not _served(graph, sources) for graph in row["graphs"]))
    }


def _served(graph: list[str], sources: tuple[str, ...]) -> bool:
    state, source, reason = graph
    return state == "compiled" and source in sources and not reason
