"""Trains a tiny GPT-2 with Transformers' Trainer, torch_compile and gradient checkpointing.

Usage: trainer_program.py SPEC. SPEC is a JSON object with ``steps``, ``seed`` and ``use_reentrant``. SPEC may also have
``tag`` (torch.compiler.config.cache_key_tag) and ``backend``. Optional ``daemon`` and ``when`` control the swap
(training_program.Swap). Prints a JSON object with the losses and the states of the graphs.
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

import torch
from training_program import Swap
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import precompiled

WORDS, LENGTH, BATCH = 64, 16, 4


class Swapping(Trainer):
    """A Trainer with a swap. The step of a Trainer calls ``compute_loss`` and then runs the backward."""

    swap: Swap

    def compute_loss(self, *arguments: Any, **options: Any) -> Any:
        step = self.state.global_step
        self.swap.at(step, "before-step")
        loss = super().compute_loss(*arguments, **options)
        self.swap.at(step, "before-backward")
        return loss


def main() -> None:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    torch.compiler.config.cache_key_tag = spec.get("tag", "")
    precompiled.enable()  # has no effect with PRECOMPILED=0
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=2,
        n_head=2,
        n_embd=32,
        vocab_size=WORDS,
        n_positions=LENGTH,
        use_cache=False,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
    )
    model = GPT2LMHeadModel(config)
    # The same batch in each step, so that the model can learn it.
    tokens = torch.randint(0, WORDS, (BATCH, LENGTH)).repeat(spec["steps"], 1)
    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            output_dir=directory,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            max_steps=spec["steps"],
            per_device_train_batch_size=BATCH,
            learning_rate=5e-3,
            seed=0,
            torch_compile=True,
            torch_compile_backend=spec.get("backend", "inductor"),
            gradient_checkpointing=True,
            gradient_checkpointing_kwargs={"use_reentrant": spec["use_reentrant"]},
        )
        trainer = Swapping(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in tokens])
        trainer.swap = Swap(spec)
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    graphs = [[graph.state, graph.source, graph.calls_eager, graph.calls_compiled] for graph in precompiled.report()]
    print(json.dumps({"losses": losses, "graphs": graphs}), flush=True)


if __name__ == "__main__":
    main()
