"""Measures (i): the time to load an artifact in a fresh process."""

from __future__ import annotations

from benchmarks.harness.effort import Effort, Say
from benchmarks.harness.hosts import expect, fresh_host
from benchmarks.harness.result import Result


def load(effort: Effort, say: Say) -> list[Result]:
    """(i) Loading the artifact of GPT-2's training in a fresh process with torch imported."""
    alone = Result("i", "load of GPT-2's artifact in a fresh process", "s", 0.1)
    client = Result("i", "the same within a client's first call", "s", None)
    imports = Result("i", "import of what a lookup needs, after torch.compile was called", "s", None)
    started = Result("i", "child processes that a load starts", "", 0.0)
    spec = effort.spec(pending="wait")
    with fresh_host() as host:
        host.start_daemon()
        host.run(spec, hook=True)
        host.stop_daemon()
        say("the artifact is there")
        for _ in range(effort.repeats):
            found = host.run({"store": str(host.root / "store")}, hook=False, program="measures.load_program")
            (graph,) = graphs = host.run(spec, hook=True, extra={"PRECOMPILED_MODE": "lookup"})["first"]
            expect(graphs, "compiled", "hit")
            alone.samples.append(found["load_s"])
            imports.samples.append(found["backend_s"])
            started.samples.append(len(found["started"]))
            client.samples.append(graph["load_s"])
            seconds = f"{found['load_s']:.3f} s; in a client {graph['load_s']:.3f} s"
            say(f"{seconds}; processes started: {found['started'] or 'none'}")
    return [alone, client, imports, started]
