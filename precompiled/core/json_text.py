"""Parses JSON from files and peers."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Like ``json.loads``, but raises ValueError, not RecursionError, for too deeply nested data."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(f"nested too deeply: {error}") from error
