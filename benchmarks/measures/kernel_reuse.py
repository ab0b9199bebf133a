"""Measures (n): how many C++ kernels of a model a worker builds if the store has the kernels of a similar model."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.harness.effort import Effort, Say
from benchmarks.harness.hosts import IN_PIECES, Host, expect, fresh_host
from benchmarks.harness.result import Result
from precompiled.store.artifacts import Store
from precompiled.store.reading import Artifact

# The model that is compiled first, the similar model, and the largest allowed share of built kernels.
SIMILAR = (("llama", "mistral", 0.25), ("llama", "qwen2", 0.25), ("bert", "roberta", 0.25))


def kernel_reuse(effort: Effort, say: Say) -> list[Result]:
    """(n) C++ kernels that a worker builds after the compile of a similar model, in training."""
    results: list[Result] = []
    for first, model, goal in SIMILAR:
        built, reused = _kernels_after(first, model, effort, say)
        title = f"C++ kernels of {model} after {first}: built / all"
        results.append(Result("n", title, "", goal, [built / (built + reused)]))
    for name, pieces in (("whole", {}), ("in pieces, then whole", IN_PIECES)):
        built, _ = _kernels_after("gpt2", "gpt2_24", effort, say, pieces)
        results.append(Result("n", f"C++ kernels built for 24 layers of GPT-2 after 12 layers, {name}", "", 0, [built]))
    return results


def _kernels_after(
    first: str, model: str, effort: Effort, say: Say, variables: dict[str, str] | None = None
) -> tuple[int, int]:
    """Return how many kernels the workers build and reuse for ``model``, if the store has the kernels of ``first``."""
    with fresh_host() as host:
        host.start_daemon()
        _compile(host, first, effort, variables)
        store = Store(host.settings.cache_dir)
        known = {artifact.path for artifact in store.every()}
        before = _kernels(store.every())
        _compile(host, model, effort, variables)
        built, reused = _kernels(artifact for artifact in store.every() if artifact.path not in known)
    say(f"{first}: {before[0]} kernels built, {before[1]} reused; then {model}: {built} built, {reused} reused")
    return built, reused


def _compile(host: Host, model: str, effort: Effort, variables: dict[str, str] | None) -> None:
    found = host.run(effort.spec(model=model, pending="wait"), hook=True, extra=variables)
    expect(found["reports"], "compiled", None)


def _kernels(artifacts: Iterable[Artifact]) -> tuple[int, int]:
    about = [artifact.manifest.compiled_by for artifact in artifacts]
    built, reused = (sum(int(item.get(f"kernels {what}", "0")) for item in about) for what in ("built", "reused"))
    return built, reused
