"""Trains one step of a GPT-2, which waits for its pieces. Usage: python -m benchmarks.measures.layers_program SPEC.

SPEC: a JSON object with the number of ``layers``. Prints a JSON line with the number of parameters.
"""

from __future__ import annotations

import json
import sys

import torch
import transformers


def main() -> None:
    count = json.loads(sys.argv[1])["layers"]
    sizes = {"n_layer": count, "n_embd": 256, "n_head": 4, "n_positions": 64, "vocab_size": 4096}
    no_dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **no_dropout, use_cache=False))
    tokens = torch.randint(4096, (2, 64))
    torch.compile(model)(input_ids=tokens, labels=tokens).loss.backward()
    print(json.dumps({"parameters": sum(parameter.numel() for parameter in model.parameters())}))


if __name__ == "__main__":
    main()
