"""What a measure is called with: how much is measured, and what says how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    size: str  # of the models: models.SIZES
    repeats: int  # fresh processes of each kind
    steady_rounds: int
    start_rounds: int  # of each block of (e)
    ranks: int = 4  # of (d)
    device: str = "cpu"  # where the model of most measures is

    @property
    def quick(self) -> bool:
        return self.size == "small"

    def spec(self, **more: Any) -> dict[str, Any]:
        """GPT-2 in training, for models/program.py."""
        return {"model": "gpt2", "size": self.size, "task": "training", "shapes": "static", "way": "compile",
                "device": self.device, **more}  # fmt: skip


FULL = Effort("full", repeats=3, steady_rounds=15, start_rounds=30)
QUICK = Effort("small", repeats=1, steady_rounds=10, start_rounds=10)

Say = Callable[[str], None]
