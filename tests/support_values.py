"""Support: types of values that tests encode.

The digest of a module covers all modules that it imports. If a test module imports precompiled, its digest takes
a second. To avoid this, this module imports only the standard library.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Mapping(enum.Enum):
    SYMMETRIC = enum.auto()
    ASYMMETRIC = enum.auto()


class Parts(enum.Flag):
    ONE = 1
    TWO = 2


@dataclass(frozen=True)
class PerRow:
    dim: int = -1


@dataclass
class Settings:
    granularity: PerRow
    mapping: Mapping = Mapping.SYMMETRIC
    sizes: list[int] = field(default_factory=lambda: [1, 2])
    made: int = field(init=False)

    def __post_init__(self) -> None:
        self.made = 7


@dataclass
class PassConfig:
    eliminate_noops: bool = True
    sizes: tuple[int, ...] = (1, 2)
