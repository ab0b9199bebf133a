"""Defines four models that an interpreter runs in seconds: an MLP, GPT-2, convolutions, and softmax with layer norm."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models.zoo import Example, causal


class _Classifier(nn.Module):
    """Returns the logits of ``body``, and their loss if there is a target."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.body(x)
        return {"logits": logits} | ({} if target is None else {"loss": functional.cross_entropy(logits, target)})


def _classifier(body: nn.Module, *shape: int) -> Example:
    return Example(_Classifier(body), {"x": torch.randn(shape)}, {"target": torch.arange(shape[0]) % 8})


def mlp() -> Example:
    return _classifier(
        nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 8)),
        8,
        32,
    )


def gpt2() -> Example:
    import transformers

    return causal(
        transformers.GPT2LMHeadModel,
        transformers.GPT2Config,
        vocabulary=128,
        batch=2,
        length=16,
        n_layer=2,
        n_head=2,
        n_embd=32,
        n_positions=16,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )


def convolutions() -> Example:
    return _classifier(
        nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1, groups=2),
            nn.BatchNorm2d(8),
            nn.Hardswish(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(32, 8),
        ),
        4,
        3,
        8,
        8,
    )


class _Attends(nn.Module):
    """A layer norm, masked attention as separate operations, a second layer norm, a softmax and a log-softmax."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.before(x)).chunk(3, -1)
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        mixed = self.after(x + weights @ value).softmax(-1)
        return self.out(mixed).log_softmax(-1).mean(1)


def softmaxes() -> Example:
    return _classifier(_Attends(24), 4, 12, 24)


MODELS: dict[str, Callable[[], Example]] = {build.__name__: build for build in (mlp, gpt2, convolutions, softmaxes)}
