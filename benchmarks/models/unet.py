"""Defines a small U-Net like those of diffusion models: down and up blocks with skips, a time embedding, attention."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional


class UNet(nn.Module):
    """Predicts the noise in a sample at a time step. With ``noise``, also returns the loss."""

    def __init__(self, channels: int = 3, width: int = 32, depth: int = 2) -> None:
        super().__init__()
        self.width = width
        widths = [width * 2**level for level in range(depth)]
        self.embed_time = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width))
        self.first = nn.Conv2d(channels, width, 3, padding=1)
        self.down = nn.ModuleList()
        before = width
        for number in widths:
            self.down.append(_Down(before, number, 4 * width))
            before = number
        self.middle = nn.ModuleList(
            [_Residual(before, before, 4 * width), _Attention(before), _Residual(before, before, 4 * width)]
        )
        self.up = nn.ModuleList()
        for number in reversed(widths):
            self.up.append(_Up(before, number, 4 * width))
            before = number
        self.last = nn.Sequential(nn.GroupNorm(8, before), nn.SiLU(), nn.Conv2d(before, channels, 3, padding=1))

    def forward(
        self, sample: torch.Tensor, timestep: torch.Tensor, noise: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        time = self.embed_time(_sinusoids(timestep, self.width))
        hidden = self.first(sample)
        skips = []
        for block in self.down:
            hidden, skip = block(hidden, time)
            skips.append(skip)
        first, attention, second = self.middle
        hidden = second(attention(first(hidden, time)), time)
        for block in self.up:
            hidden = block(hidden, skips.pop(), time)
        predicted = self.last(hidden)
        if noise is None:
            return {"sample": predicted}
        return {"loss": functional.mse_loss(predicted, noise), "sample": predicted}


def _sinusoids(timestep: torch.Tensor, width: int) -> torch.Tensor:
    half = width // 2
    frequencies = torch.exp(-math.log(10_000) * torch.arange(half, device=timestep.device) / half)
    angles = timestep[:, None].float() * frequencies[None]
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class _Residual(nn.Module):
    def __init__(self, before: int, after: int, time: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1))
        self.time = nn.Linear(time, after)
        self.second = nn.Sequential(nn.GroupNorm(8, after), nn.SiLU(), nn.Conv2d(after, after, 3, padding=1))
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, hidden: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        inner = self.first(hidden) + self.time(functional.silu(time))[:, :, None, None]
        return self.skip(hidden) + self.second(inner)


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(8, width)
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, width, height, length = hidden.shape
        flat = self.norm(hidden).flatten(2).transpose(1, 2)
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.project_in(flat).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        return hidden + self.project_out(mixed).transpose(1, 2).reshape(batch, width, height, length)


class _Down(nn.Module):
    def __init__(self, before: int, after: int, time: int) -> None:
        super().__init__()
        self.residual = _Residual(before, after, time)
        self.shrink = nn.Conv2d(after, after, 3, stride=2, padding=1)

    def forward(self, hidden: torch.Tensor, time: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        skip = self.residual(hidden, time)
        return self.shrink(skip), skip


class _Up(nn.Module):
    def __init__(self, before: int, after: int, time: int) -> None:
        super().__init__()
        self.grow = nn.Conv2d(before, after, 3, padding=1)
        self.residual = _Residual(2 * after, after, time)

    def forward(self, hidden: torch.Tensor, skip: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        hidden = self.grow(functional.interpolate(hidden, scale_factor=2.0, mode="nearest"))
        return self.residual(torch.cat([hidden, skip], dim=1), time)
