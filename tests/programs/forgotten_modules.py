"""Lets a process import modules of a program anew, as a new process would."""

from __future__ import annotations

import sys
from types import ModuleType

import torch
from torch._dynamo import symbolic_convert


def forget(*names: str) -> None:
    """Remove modules, and what Dynamo keeps of them for the life of the process."""
    for name in names:
        sys.modules.pop(name, None)
    aliases = [f"__import_{name}" for name in names]  # Dynamo puts these into the globals of any module
    for module in [module for module in sys.modules.values() if isinstance(module, ModuleType)]:
        for alias in aliases:
            vars(module).pop(alias, None)
    symbolic_convert._import_module.cache_clear()
    torch._dynamo.reset()
