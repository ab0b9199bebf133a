"""Saves the daemon's counters in its runtime directory, so that they survive a restart.

The file maps each uid to its counters. A counter's name is the name of a field of wire.StatsReply. A counter is a
number, or a table that maps each reason to a number.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from precompiled.core import durable
from precompiled.core.json_text import parse_json
from precompiled.core.regular_file import read_bytes

FILE = "stats.json"
MAX_AMOUNT = 1 << 40
Counts = dict[str, Any]


def write(directory: Path, counts: dict[int, Counts]) -> None:
    """Replace the file. Raises OSError."""
    text = json.dumps({str(uid): found for uid, found in counts.items()})
    with durable.replacing(directory / FILE, 0o600, sync=False) as file:
        file.write(text.encode())


def read(directory: Path) -> dict[int, Counts]:
    """The counters of each uid; empty if no daemon has saved any. Raises OSError or ValueError."""
    try:
        saved = parse_json(read_bytes(directory / FILE))
        return {int(uid): {name: _amount(value) for name, value in found.items()} for uid, found in saved.items()}
    except FileNotFoundError:
        return {}
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{directory / FILE} has no counters: {error}") from error


def sane(amount: float) -> float:
    """``amount``; 0 if it is negative, NaN or huge."""
    return amount if math.isfinite(amount) and 0 <= amount <= MAX_AMOUNT else 0


def _amount(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(reason): int(sane(amount)) for reason, amount in value.items()}
    return sane(value)
