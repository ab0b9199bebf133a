"""Defines programs that use libraries around a model: settings, tests, logs, and tools that watch or patch torch."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch
from torch.nn import functional

from benchmarks.programs.registry import STEPS, Values, program, trained


@program("hydra", "omegaconf")
def hydra_config() -> Iterator[Values]:
    """A model whose forward reads the configuration."""
    from hydra import compose, initialize
    from hydra.utils import instantiate
    from omegaconf import DictConfig

    class Model(torch.nn.Module):
        def __init__(self, cfg: DictConfig) -> None:
            super().__init__()
            self.cfg, width = cfg, cfg.model.width
            self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(cfg.model.layers))
            self.activation = instantiate(cfg.model.activation)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scale = self.cfg.trainer.scale
            for layer in self.layers:
                x = self.activation(layer(x)) * scale
            return x

    with initialize(version_base=None, config_path="applications/conf"):
        cfg = compose("config", overrides=["trainer.scale=0.25"])
    model = Model(cfg)
    compiled = torch.compile(model)
    points, labels = torch.randn(16, cfg.model.width), torch.arange(16) % 3
    smoothing = cfg.trainer.smoothing
    yield from trained(model, lambda: functional.cross_entropy(compiled(points), labels, label_smoothing=smoothing))


@program("pydantic_settings", "pydantic")
def environment_settings() -> Iterator[Values]:
    """A compiled function that reads nested settings."""
    from pydantic import BaseModel
    from pydantic_settings import BaseSettings, SettingsConfigDict

    class Attention(BaseModel):
        heads: int = 2
        causal: bool = True

    class Settings(BaseSettings):
        model_config = SettingsConfigDict(env_prefix="APP_", env_nested_delimiter="__", frozen=True)
        scale: float = 1.0
        attention: Attention = Attention()

    os.environ.update(APP_SCALE="0.5", APP_ATTENTION__HEADS="4")
    settings = Settings()
    linear = torch.nn.Linear(16, 48)

    @torch.compile
    def attend(x: torch.Tensor, settings: Settings) -> torch.Tensor:
        parts = linear(x).unflatten(-1, (3, settings.attention.heads, -1)).transpose(1, -2).unbind(-3)
        query, key, value = parts
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=settings.attention.causal)
        return found.flatten(1) * settings.scale

    points = torch.randn(2, 6, 16)
    yield from trained(linear, lambda: attend(points, settings).square().mean())


@program("wandb")
def watched_model() -> Iterator[Values]:
    """wandb.watch on a compiled model."""
    import tempfile

    import wandb

    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    with tempfile.TemporaryDirectory() as folder, wandb.init(mode="offline", dir=folder) as run:
        run.watch(model, log_freq=1)
        compiled = torch.compile(model)
        points, labels = torch.randn(16, 8), torch.arange(16) % 3
        for values in trained(model, lambda: functional.cross_entropy(compiled(points), labels)):
            run.log({"loss": values["loss"].item()})
            yield values


@program("torch")
def patched_torch() -> Iterator[Values]:
    """A library that replaces torch functions and hooks all modules."""
    from benchmarks.programs.applications import patches

    patches.patch()
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 3))
    seen: dict[str, torch.Tensor] = {}
    patches.watch(model, seen)
    compiled = torch.compile(model.train())
    points, labels = torch.randn(16, 8), torch.arange(16) % 3
    for values in trained(model, lambda: functional.cross_entropy(compiled(points), labels)):
        yield {**values, **{f"seen {name}": value.clone() for name, value in seen.items()}}


@program("pytest")
def mocks_in_tests() -> Iterator[Values]:
    """Tests with mocks for functions that compiled code calls."""
    import pytest

    from benchmarks.programs.applications import mocked_tests

    for _ in range(STEPS):
        mocked_tests.VALUES.clear()
        code = pytest.main(["-q", "-p", "no:cacheprovider", "--import-mode=importlib", mocked_tests.__file__])
        assert code == 0, f"pytest ended with {code}"
        yield {str(number): value.clone() for number, value in enumerate(mocked_tests.VALUES)}
