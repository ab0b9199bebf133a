"""Finds objects by dotted names, and turns Dynamo's names into the program's names.

The functions return None if no object has the name.
"""

from __future__ import annotations

import re
import sys
from operator import attrgetter
from typing import Any

# Parts that Dynamo adds to the program's names: ``L['self']._modules['fc']._parameters['weight']``.
_ROOT = re.compile(r"\b[LG]\['(\w+)'\]")
# The part of an installed file's path up to and including ``site-packages/`` or ``dist-packages/``.
_INSTALLED = re.compile(r"(?<![\w/])/[^\s:'\"]*/(?:site|dist)-packages/")
_MEMBER = re.compile(r"\._(?:modules|parameters|buffers)\['(\w+)'\]")


def in_words(text: str) -> str:
    """Replace Dynamo's names in a text by the program's, such as ``self.fc.weight``."""
    return _MEMBER.sub(r".\1", _ROOT.sub(r"\1", text))


def shorten_paths(text: str) -> str:
    """Shorten the paths of installed files in a text, for example to ``transformers/models/gpt2/modeling_gpt2.py``."""
    return _INSTALLED.sub("", text)


def attribute_at(holder: object, qualname: str) -> object:
    """The object at a dotted name below ``holder``, or None."""
    try:
        return attrgetter(qualname)(holder)
    except AttributeError:
        return None


def object_at(module: str, qualname: str) -> Any:
    """The object at a qualified name in an imported module, or None."""
    return attribute_at(sys.modules.get(module), qualname)
