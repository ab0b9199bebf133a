"""Trains a small GPT-2 on random tokens with plain ``torch.compile``. It does not mention precompiled.

Try it: ``python examples/demo/train.py``, then ``precompiled run -- python examples/demo/train.py``.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator

import torch
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel

VOCABULARY, BATCH, LENGTH = 2048, 2, 128


class LanguageModel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # Dropout is off, so that runs can be compared: eager and compiled code draw different random numbers.
        self.gpt2 = GPT2LMHeadModel(
            GPT2Config(
                n_layer=12,
                n_head=4,
                n_embd=256,
                n_positions=LENGTH,
                vocab_size=VOCABULARY,
                bos_token_id=0,
                eos_token_id=0,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
            )
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.gpt2(tokens).logits
        return cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def training() -> Iterator[float]:
    """Make the model, and yield the loss of each training step endlessly."""
    torch.manual_seed(0)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    compiled = torch.compile(model)
    batches = [torch.randint(0, VOCABULARY, (BATCH, LENGTH)) for _ in range(8)]

    def step(batch: torch.Tensor) -> float:
        loss = compiled(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return (step(batch) for batch in itertools.cycle(batches))


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    started = time.perf_counter()
    for step, loss in enumerate(training(), 1):
        logging.info("step %3d  loss %.4f  %.2f s", step, loss, time.perf_counter() - started)
        started = time.perf_counter()
        if step == 100:
            break


if __name__ == "__main__":
    main()
