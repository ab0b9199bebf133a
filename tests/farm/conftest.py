"""Adds the helpers of the store's tests to the path, beside the helpers of this folder."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "store"))
