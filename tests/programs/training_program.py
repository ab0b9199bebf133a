"""One rank of a training run. The rank applies checkpoints, compile, and DDP or FSDP2 (gloo) in the order of a library.

Usage: training_program.py SPEC. SPEC is a JSON object:

- rank, ranks, rendezvous (a file), steps, seed
- parallel: "ddp", "ddp-static", "fsdp2" or "" (one rank)
- order: "torchtune" (compile each block, then checkpoint it), "torchtitan" (checkpoint, then compile) or "none" (no
  checkpoints)
- daemon: the pid of a daemon that is paused by SIGSTOP. This program resumes the daemon, so that the swap happens at
  a chosen step
- when: the time of the swap

Prints a JSON object with the losses and the states of the graphs. The model is tiny, because only the swap matters.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from typing import Any

import torch
import torch.distributed as dist
from leaving import leave
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

DIM, LAYERS, HEADS, WORDS = 64, 4, 4, 50


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(DIM), torch.nn.LayerNorm(DIM)
        self.qkv, self.out = torch.nn.Linear(DIM, 3 * DIM), torch.nn.Linear(DIM, DIM)
        self.up, self.down = torch.nn.Linear(DIM, 4 * DIM), torch.nn.Linear(4 * DIM, DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, DIM)
        self.layers = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = torch.nn.Linear(DIM, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class TwoHeads(torch.nn.Module):
    """A model with two heads in one graph. The loss uses only one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, DIM)
        self.used, self.unused = torch.nn.Linear(DIM, WORDS), torch.nn.Linear(DIM, WORDS)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embedding(tokens).relu()
        return self.used(x), self.unused(x)


def built(order: str, parallel: str, backend: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if order == "two-heads":
        model: torch.nn.Module = torch.compile(TwoHeads(), backend=backend)
    else:
        model = Model()
        for number, block in enumerate(model.layers):
            if order == "torchtune":
                block.compile(backend=backend)
                model.layers[number] = checkpoint_wrapper(block)
            elif order == "torchtitan":
                model.layers[number] = torch.compile(checkpoint_wrapper(block), backend=backend, fullgraph=True)
            else:
                model.layers[number] = torch.compile(block, backend=backend, fullgraph=True)
    if parallel == "fsdp2":
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    elif parallel in ("ddp", "ddp-static"):
        model = DistributedDataParallel(model, static_graph=parallel == "ddp-static")
    return model


class Swap:
    """Resumes the paused daemon at one step, and waits for the artifacts before the step or before its backward.

    If ``when`` is "any", the training does not wait, and the training continues until all graphs are swapped.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        choice = random.Random(spec["seed"])
        self.daemon: int | None = spec.get("daemon")
        self.step = choice.randrange(1, spec["steps"] - 1)
        self.when = spec.get("when") or choice.choice(["before-step", "before-backward"])

    def at(self, step: int, when: str) -> None:
        if self.daemon is None or step != self.step:
            return
        if self.when == "any" and when == "before-step":
            os.kill(self.daemon, signal.SIGCONT)
        if self.when == when:
            import precompiled

            assert {graph.state for graph in precompiled.report()} == {"pending"}, precompiled.report()
            os.kill(self.daemon, signal.SIGCONT)
            # Between a forward and its backward, a swap may have to wait for the end of the step.
            assert precompiled.wait(300 if when == "before-step" else 120) or when == "before-backward"


def all_swapped() -> bool:
    """Returns whether all graphs are swapped on all ranks. Ranks must agree, because they must end together."""
    import precompiled

    swapped = torch.tensor(int(precompiled.wait(0)))
    if dist.is_initialized():
        dist.all_reduce(swapped, op=dist.ReduceOp.MIN)
    return bool(swapped)


def train(model: torch.nn.Module, spec: dict[str, Any], swap: Swap) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)

    def one(step: int) -> float:
        random_numbers = torch.Generator().manual_seed(step * 10 + spec.get("rank", 0))
        tokens = torch.randint(0, WORDS, (4, 16), generator=random_numbers)
        swap.at(step, "before-step")
        output = model(tokens)
        output = output[0] if isinstance(output, tuple) else output
        loss = torch.nn.functional.cross_entropy(output.flatten(0, 1), tokens.flatten())
        swap.at(step, "before-backward")
        # A run that waits long for its swap must not diverge, so the rate is lower after the model has learned.
        optimizer.param_groups[0]["lr"] = 0.05 if step < 100 else 1e-4
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    losses = [one(step) for step in range(spec["steps"])]
    if swap.when == "any" and swap.daemon is not None:
        while not all_swapped():
            losses.append(one(len(losses)))
        losses += [one(step) for step in range(len(losses), len(losses) + 3)]
    return losses


def main() -> None:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    torch.compiler.config.cache_key_tag = spec.get("tag", "")  # the tag gives each run a separate artifact
    ranks = spec.get("ranks", 1)
    if ranks > 1:
        file = f"file://{spec['rendezvous']}"
        dist.init_process_group("gloo", init_method=file, rank=spec["rank"], world_size=ranks)
    import precompiled

    precompiled.enable()  # has no effect with PRECOMPILED=0
    model = built(spec["order"], spec.get("parallel", ""), spec.get("backend", "inductor"))
    losses = train(model, spec, Swap(spec))
    graphs = [[graph.state, graph.source, graph.calls_eager, graph.calls_compiled] for graph in precompiled.report()]
    print(json.dumps({"losses": losses, "graphs": graphs}), flush=True)
    if ranks > 1:
        leave()


if __name__ == "__main__":
    main()
