"""Measures (m): how the workers' time grows with the number of equal layers, if a graph runs in pieces."""

from __future__ import annotations

from benchmarks.harness.effort import Effort, Say
from benchmarks.harness.hosts import IN_PIECES, BenchmarkError, fresh_host
from benchmarks.harness.result import Result
from precompiled.store.artifacts import Store

FEW, MANY = 12, 48
WAITING = {**IN_PIECES, "PRECOMPILED_MODE": "wait"}


def layers(effort: Effort, say: Say) -> list[Result]:
    """(m) The workers' compile time of the pieces of a GPT-2 with 48 layers, relative to one with 12 layers."""
    result = Result("m", f"compile time of the pieces: {MANY} layers / {FEW} layers, training", "", 1.5)
    for _ in range(effort.repeats):
        few, many = _seconds(FEW), _seconds(MANY)
        result.samples.append(many / few)
        for count, seconds in ((FEW, few), (MANY, many)):
            result.raw.setdefault(f"{count} layers (s)", []).append(seconds)
        say(f"{FEW} layers: {few:.1f} s, {MANY} layers: {many:.1f} s")
    return [result]


def _seconds(count: int) -> float:
    """Return the seconds that the workers of a fresh host took to compile the pieces of ``count`` layers."""
    with fresh_host() as host:
        host.start_daemon()
        host.run({"layers": count}, hook=True, extra=WAITING, program="measures.layers_program")
        host.stop_daemon()
        pieces = [
            one.manifest for one in Store(host.settings.cache_dir).all_artifacts() if ", piece " in one.manifest.name
        ]
    if not pieces:
        raise BenchmarkError(f"a GPT-2 with {count} layers was not compiled in pieces")
    return sum(manifest.compile_s for manifest in pieces)
