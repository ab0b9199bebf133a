"""The measured program, a process of its own: plain torch.compile on a GPT-2 that trains.

Usage: program.py SPEC, a JSON object: ``layers``, ``width``, ``vocabulary``, ``batch``, ``length`` of the model;
``backend`` of torch.compile; ``task``, one of:

    first     the first training step (forward and backward), then wait until nothing is pending
    steady    the same, then serve "go N" lines on stdin: N steps, and their seconds on stdout
    work      the first step, wait until nothing is pending, and ``steps`` more

Prints one line of JSON. precompiled is switched on from outside, if at all.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging


class LanguageModel(torch.nn.Module):
    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__()
        self.gpt2 = GPT2LMHeadModel(
            GPT2Config(
                n_layer=spec["layers"], n_head=spec["width"] // 64, n_embd=spec["width"], n_positions=spec["length"],
                vocab_size=spec["vocabulary"], bos_token_id=0, eos_token_id=0,
                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            )
        )  # fmt: skip

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.gpt2(tokens).logits
        return cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def reports() -> list[dict[str, Any]]:
    if "precompiled.session" not in sys.modules:
        return []
    import precompiled

    return [vars(graph) for graph in precompiled.report()]


def wait() -> None:
    if "precompiled.session" in sys.modules:
        import precompiled

        precompiled.wait()


def main() -> None:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    logging.set_verbosity_error()
    torch.manual_seed(0)
    model = LanguageModel(spec)
    tokens = torch.randint(0, spec["vocabulary"], (spec["batch"], spec["length"]))
    compiled = torch.compile(model, backend=spec.get("backend", "inductor"))

    def step() -> float:
        model.zero_grad(set_to_none=True)
        started = time.perf_counter()
        compiled(tokens).backward()
        return time.perf_counter() - started

    # torch.compile itself imports Dynamo when it is called: that is before the first call, the same for all.
    result: dict[str, Any] = {"first_s": step(), "first": reports()}
    wait()
    if spec["task"] == "steady":
        print("ready", flush=True)
        for line in sys.stdin:
            count = int(line.split()[1])
            print(json.dumps([step() for _ in range(count)]), flush=True)
    elif spec["task"] == "work":
        result["steps"] = [step() for _ in range(spec["steps"])]
    result["reports"] = reports()
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
