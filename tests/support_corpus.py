"""Runs the corpus (programs/corpus_program.py) on a host, and says which rows are not as they should be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support_host import TIMEOUT_S, Host

PROGRAM = Path(__file__).parent / "programs" / "corpus_program.py"
Answer = dict[str, dict[str, Any]]

# What is not served, of what torch itself can compile: at most three rows.
BYPASSED = {
    # The forward then takes a state of this process (torch.fx.experimental._backward_state) and calls the hook by it.
    "compiled_autograd_module_hooks": {"user-function"},
}

# And on torch 2.11, where DTensors describe themselves in another way (docs/decisions/0040).
BYPASSED_ON_2_11 = {"distributed_tensor": {"unsupported-input", "unsupported-argument", "user-function"}}

# Rows with a frame that no package holds, which Dynamo traces in each process, with package_report()'s reasons.
TRACED: dict[str, set[str]] = {
    "a_float_that_changes": {"package-global"},  # it became an input of the graph
    "default_device": {"package-mode"},
    # Their weights are no inputs of the graph, but tensors of the process.
    **{f"frozen_{name}": {"package-graph"} for name in ("linear", "convolution")},
    # Recorded while eager stood in, whose outputs are views, for the frame after the break; compiled code's are not.
    "views_of_one_tensor_across_a_graph_break": {""},
    # Their forwards come from packages. The graphs of backwards are made by compiled autograd itself, each time.
    **{f"compiled_autograd_{name}": {"package-graph"} for name in (
        "plain", "sizes", "custom", "autocast_off_inside", "accumulation", "retained_graph", "hooks", "module_hooks",
        "saved_tensor_hooks")},
    "compiled_autograd_by_configuration": {"package-mode"},
    # Their state is made while they are traced; parameters and state are no inputs of the graph. The frames around
    # them are made for one optimizer.
    **{f"optimizer_{name}": {"package-graph", "package-not-portable"} for name in (
        "sgd", "adam", "adam_foreach", "adamw", "adamw_tensor_lr", "rmsprop", "adagrad")},
}  # fmt: skip


def traced(answer: Answer) -> dict[str, list[Any]]:
    """Rows with frames that no package served, and these frames."""
    found = {name: [frame for frame in row["frames"] if frame[1] not in ("used", "skipped")]
             for name, row in answer.items()}  # fmt: skip
    return {name: frames for name, frames in found.items() if frames}


def run(
    host: Host, *names: str, python: str | None = None, program: Path = PROGRAM, env: Mapping[str, str] | None = None,
) -> Answer:  # fmt: skip
    """All rows, or those named, in one process. A warning of ours may be an error there, as in many test suites."""
    started = host.program(str(program), *names, env=env, python=python, forked=program == PROGRAM)
    found: Answer = started.result(timeout_s=4 * TIMEOUT_S)
    return found


def wrong(answer: Answer) -> dict[str, str]:
    """Rows whose results are not eager's."""
    return {name: row["error"] for name, row in answer.items() if row["error"]}


def not_served(answer: Answer, *sources: str) -> dict[str, Any]:
    """Rows with a graph that did not come from the daemon by ``sources`` ("swap", "hit"), but for those BYPASSED."""
    return {
        name: (row["graphs"], row["messages"], row["compiles"])
        for name, row in answer.items()
        if name not in BYPASSED
        and (not row["graphs"] or row["compiles"] or any(not _served(graph, sources) for graph in row["graphs"]))
    }


def _served(graph: list[str], sources: tuple[str, ...]) -> bool:
    state, source, reason = graph
    return state == "compiled" and source in sources and not reason
