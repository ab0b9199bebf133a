"""Dotted names of attributes, and what they lead to. Where nothing there is an error: ``operator.attrgetter``."""

from __future__ import annotations

import sys
from operator import attrgetter
from typing import Any


def attribute_at(holder: Any, qualname: str) -> Any:
    """What a dotted name leads to from ``holder``; None where it leads nowhere."""
    try:
        return attrgetter(qualname)(holder)
    except AttributeError:
        return None


def object_at(module: str, qualname: str) -> Any:
    """What a qualified name leads to in a module that was imported; None where it leads nowhere."""
    return attribute_at(sys.modules.get(module), qualname)
