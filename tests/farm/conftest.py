"""Adds tests/store to ``sys.path``, because the tests of this folder use its support modules, too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "store"))
