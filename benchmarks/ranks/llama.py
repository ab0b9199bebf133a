"""Defines the case of a Llama-shaped model on a two-dimensional mesh, parallelized in torchtitan's order."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional

from benchmarks.ranks.registry import Values, case, trained

WIDTH, HEADS, LAYERS, WORDS, LENGTH = 128, 8, 4, 256, 32


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        rows, length = x.shape[:2]
        # With tensor parallelism, this rank has only its share of the heads.
        query, key, value = (layer(x).view(rows, length, -1, WIDTH // HEADS) for layer in (self.wq, self.wk, self.wv))
        query, key, value = (item.transpose(1, 2) for item in (_turned(query, turns), _turned(key, turns), value))
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        answer: torch.Tensor = self.wo(found.transpose(1, 2).reshape(rows, length, -1))
        return answer


def _turned(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Apply rotary embeddings."""
    cosine, sine = (part[: x.shape[1], None, :] for part in (turns.cos(), turns.sin()))
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)


class FeedForward(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = (torch.nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.w2 = torch.nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.w2(functional.silu(self.w1(x)) * self.w3(x))
        return answer


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.attention_norm, self.ffn_norm = torch.nn.RMSNorm(WIDTH), torch.nn.RMSNorm(WIDTH)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), turns)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = torch.nn.Embedding(WORDS, WIDTH)
        half = WIDTH // HEADS // 2
        speeds = 10000.0 ** (-torch.arange(half) / half)
        self.register_buffer("turns", torch.outer(torch.arange(LENGTH), speeds), persistent=False)
        self.layers = torch.nn.ModuleDict({str(number): Block() for number in range(LAYERS)})
        self.norm = torch.nn.RMSNorm(WIDTH)
        self.output = torch.nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            x = layer(x, self.turns)
        answer: torch.Tensor = self.output(self.norm(x))
        return answer


def parallelized(mesh: DeviceMesh) -> Llama:
    """Parallelize as torchtitan does: tensor parallel, compile each block, fully_shard.

    Omits torchtitan's checkpointing between tensor parallel and compile. In torch 2.13, the first forward of a compiled
    and checkpointed block with DTensors raises, because AOTAutograd saves a DeviceMesh among its tensors.
    """
    torch.manual_seed(0)
    model = Llama()
    parallelize_module(
        model,
        mesh["tp"],
        {
            "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        },
    )
    for block in model.layers.values():
        parallelize_module(
            block,
            mesh["tp"],
            {
                "attention_norm": SequenceParallel(),
                "attention": PrepareModuleInput(
                    input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
                ),
                **{f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")},
                "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
                "ffn_norm": SequenceParallel(),
                "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
                **{f"feed_forward.{name}": ColwiseParallel() for name in ("w1", "w3")},
                "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
            },
        )
    for name, block in list(model.layers.named_children()):
        compiled = torch.compile(block)
        model.layers.register_module(name, compiled)
        fully_shard(compiled, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return model


def steps(tensor_parallel: int) -> Iterator[Values]:
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world // tensor_parallel, tensor_parallel), mesh_dim_names=("dp", "tp"))
    model = parallelized(mesh)
    number = mesh["dp"].get_local_rank()  # all ranks of a tensor-parallel group have the same tokens

    def loss(step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * step + number)
        tokens = torch.randint(WORDS, (2, LENGTH + 1), generator=generator)
        found = model(tokens[:, :-1])
        return functional.cross_entropy(found.flatten(0, 1), tokens[:, 1:].flatten())

    yield from trained(model, loss, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False))


@case("tensor parallel", ranks=4)
def llama() -> Iterator[Values]:
    """A Llama in torchtitan's order: tensor and sequence parallel, each block compiled, fully_shard"""
    yield from steps(tensor_parallel=2)
