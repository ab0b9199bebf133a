"""Defines the arguments of a measure: how much to measure, and the function that prints progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Effort:
    """How much to measure."""

    size: str  # the size of the models, a key of models.SIZES
    repeats: int  # number of fresh processes of each kind
    steady_rounds: int
    start_rounds: int  # number of start rounds in each block of measure (e)
    ranks: int = 4  # number of processes in measure (d)
    device: str = "cpu"  # the device of the model in most measures

    @property
    def quick(self) -> bool:
        return self.size == "small"

    def spec(self, **more: Any) -> dict[str, Any]:
        """Return the spec of models/program.py for GPT-2 in training."""
        return {
            "model": "gpt2",
            "size": self.size,
            "task": "training",
            "shapes": "static",
            "way": "compile",
            "device": self.device,
            **more,
        }


FULL = Effort("full", repeats=3, steady_rounds=15, start_rounds=30)
QUICK = Effort("small", repeats=1, steady_rounds=10, start_rounds=10)

Say = Callable[[str], None]
