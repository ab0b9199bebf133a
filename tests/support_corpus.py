"""Support: runs the corpus (programs/corpus_program.py) on a host, and reports the rows that deviate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support_host import TIMEOUT_S, Host

PROGRAM = Path(__file__).parent / "programs" / "corpus_program.py"
Answer = dict[str, dict[str, Any]]

# Rows that torch can compile but precompiled does not serve, with the reasons. test_corpus.py allows at most three.
BYPASSED = {
    # With module hooks under compiled autograd, a forward graph has a state object as an input
    # (torch.fx.experimental._backward_state).
    "compiled_autograd_module_hooks": {"user-function"},
}

# Additional rows that precompiled does not serve on torch 2.11, with the reasons.
BYPASSED_ON_2_11 = {"distributed_tensor": {"unsupported-input", "unsupported-argument", "user-function"}}

# Rows with a frame that no package contains, so that each process traces it. The reasons are those in package_report().
TRACED: dict[str, set[str]] = {
    "a_float_that_changes": {"package-global"},  # Dynamo makes the float an input of the graph
    "default_device": {"package-mode"},
    # A frozen graph holds its weights as constants of the process.
    **{f"frozen_{name}": {"package-graph"} for name in ("linear", "convolution")},
    # The frame after the break is recorded while the first graph runs eager. Eager outputs are views of one tensor;
    # outputs of compiled code are not.
    "views_of_one_tensor_across_a_graph_break": {""},
    # Forward graphs come from packages, but compiled autograd creates the backward graphs anew in each process.
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
    # The graph holds the parameters and the state that the trace created, and each frame belongs to one optimizer.
    **{
        f"optimizer_{name}": {"package-graph", "package-not-portable"}
        for name in ("sgd", "adam", "adam_foreach", "adamw", "adamw_tensor_lr", "rmsprop", "adagrad")
    },
}


def traced(answer: Answer) -> dict[str, list[Any]]:
    """Returns the frames that no package served, by row."""
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
    """Run all rows, or the named ones, in one process. The corpus program raises warnings of precompiled as errors."""
    started = host.program(str(program), *names, env=env, python=python, forked=program == PROGRAM)
    found: Answer = started.result(timeout_s=4 * TIMEOUT_S)
    return found


def wrong(answer: Answer) -> dict[str, str]:
    """Returns the errors of the rows that failed or whose results differ from eager's."""
    return {name: row["error"] for name, row in answer.items() if row["error"]}


def not_served(answer: Answer, *sources: str) -> dict[str, Any]:
    """Returns the rows, except those in BYPASSED, that the daemon did not serve completely.

    In such a row, the process compiled a graph itself, a graph's source is not in ``sources`` ("swap", "hit"), or no
    graph exists.
    """
    return {
        name: (row["graphs"], row["messages"], row["compiles"])
        for name, row in answer.items()
        if name not in BYPASSED
        and (not row["graphs"] or row["compiles"] or any(not _served(graph, sources) for graph in row["graphs"]))
    }


def _served(graph: list[str], sources: tuple[str, ...]) -> bool:
    state, source, reason = graph
    return state == "compiled" and source in sources and not reason
