"""An ordinary training script. It does not mention precompiled.

precompiled watch --file hparams.json -- python train.py
"""

import json
import sys
import time
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

hparams = json.loads(Path(__file__).with_name("hparams.json").read_text())
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000

torch.manual_seed(0)
config = GPT2Config(
    n_layer=hparams["layers"],
    n_embd=hparams["width"],
    n_head=4,
    vocab_size=1024,
    n_positions=128,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    bos_token_id=0,
    eos_token_id=0,
)
model = GPT2LMHeadModel(config)
# Random tokens: the result of the training does not matter.
compiled = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=hparams["lr"])
for step in range(steps):
    started = time.perf_counter()
    tokens = torch.randint(0, 1024, (hparams["batch"], 64))
    loss = compiled(tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.3f}, {time.perf_counter() - started:.3f} s", flush=True)  # noqa: T201
