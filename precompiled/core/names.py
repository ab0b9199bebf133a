"""Dotted names of attributes, and what they lead to. Where nothing there is an error: ``operator.attrgetter``.

And Dynamo's names of what it reads, as the program says them.
"""

from __future__ import annotations

import re
import sys
from operator import attrgetter
from typing import Any

# ``L['self']._modules['fc']._parameters['weight']``: what Dynamo adds to what the program says.
_ROOT = re.compile(r"\b[LG]\['(\w+)'\]")
_MEMBER = re.compile(r"\._(?:modules|parameters|buffers)\['(\w+)'\]")


def in_words(text: str) -> str:
    """``self.fc.weight``, in place of each of Dynamo's names in a text."""
    return _MEMBER.sub(r".\1", _ROOT.sub(r"\1", text))


def attribute_at(holder: Any, qualname: str) -> Any:
    """What a dotted name leads to from ``holder``; None where it leads nowhere."""
    try:
        return attrgetter(qualname)(holder)
    except AttributeError:
        return None


def object_at(module: str, qualname: str) -> Any:
    """What a qualified name leads to in a module that was imported; None where it leads nowhere."""
    return attribute_at(sys.modules.get(module), qualname)
