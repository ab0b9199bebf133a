"""Constructs beyond plain models: each swaps in, and hits in the next process, with eager's results and gradients."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support_host import TIMEOUT_S, Host

from precompiled.artifact.format import Failure

PROGRAMS = Path(__file__).parent.parent / "programs"


def run(host: Host, program: Path, *names: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, *(["-W", "error::RuntimeWarning"] if env else []), str(program), *names],
        env=host.environment(env),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_every_construct_swaps_in_and_hits(shared_host: Host) -> None:
    program = PROGRAMS / "constructs_program.py"
    for source in ("swap", "hit"):
        answer = run(shared_host, program)
        others = {
            name: graphs
            for name, graphs in answer["states"].items()
            if any(graph != ["compiled", source, ""] for graph in graphs)
        }
        assert others == {}
        assert answer["compiles"] == 0


def test_an_edit_of_what_a_custom_op_refers_to_is_never_served_stale(shared_host: Host, tmp_path: Path) -> None:
    """The backward's constant lies in another module: a new key, and a worker that has not imported the old one."""
    for name in ("constructs_program.py", "user_ops.py", "user_constants.py"):
        shutil.copy(PROGRAMS / name, tmp_path)
    program = tmp_path / "constructs_program.py"
    run(shared_host, program, "custom_op")
    constants = tmp_path / "user_constants.py"
    constants.write_text(constants.read_text().replace("1.5", "4.25"))
    assert run(shared_host, program, "custom_op")["states"] == {"custom_op": [["compiled", "swap", ""]]}
    assert run(shared_host, program, "custom_op")["states"] == {"custom_op": [["compiled", "hit", ""]]}


def test_a_refused_graph_is_compiled_in_process_with_its_guards(host: Host) -> None:
    """The client itself refuses a graph over the limit. Our warnings never become errors of the program's."""
    host.start_daemon()  # and an empty store: what is there already is a hit, whatever its size
    names = ("pool_of_any_size", "branch_on_a_size", "custom_function", "checkpoint_with_dropout")
    answer = run(host, PROGRAMS / "constructs_program.py", *names, env={"PRECOMPILED_MAX_GRAPH_BYTES": "10"})
    for name in names:
        graphs = {tuple(graph) for graph in answer["states"][name]}
        # One that is not called again is not compiled either.
        assert ("bypassed", "inline", "too-large") in graphs
        assert graphs <= {("bypassed", "inline", "too-large"), ("bypassed", None, "too-large")}


def test_a_failure_record_leaves_no_graph_eager_that_must_not_run_eager(host: Host) -> None:
    """Ranks must not run eager and compiled mixes of collectives: in process it is, whatever a record says."""
    program, name = PROGRAMS / "corpus_program.py", "collective"
    looked_up = run(host, program, name, env={"PRECOMPILED_MODE": "lookup"})[name]
    assert looked_up["graphs"] == [["bypassed", "inline", "lookup-only"]] and not looked_up["error"]
    (key,) = looked_up["keys"]
    host.store.publish_failure(Failure(key, name, "compile-error", "It failed.", time.time(), 3600.0))
    assert run(host, program, name)[name]["graphs"] == [["bypassed", "inline", "compile-error"]]


def test_an_error_of_ours_in_the_middle_of_a_miss_does_not_reach_the_program(shared_host: Host) -> None:
    answer = run(shared_host, PROGRAMS / "broken_submit_program.py")
    assert answer == {"state": "bypassed", "source": "inline", "reason": "internal-error", "waited": True}
