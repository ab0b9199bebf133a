"""Compares two builds of a kernel: the instructions in their ``.so``, and the values that they compute."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch


@lru_cache(maxsize=64)
def functions(file: Path) -> dict[str, list[str]]:
    """Return the instructions of each function, without addresses and without stack slots of spilled registers.

    GCC orders stack slots differently if the translation unit differs.
    """
    text = subprocess.run(
        ["objdump", "-d", "-C", "--no-show-raw-insn", str(file)], capture_output=True, text=True, check=True
    ).stdout
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if head := re.fullmatch(r"[0-9a-f]+ <(.*)>:", line):
            current = found.setdefault(head[1], [])
        elif "\t" in line:
            code = re.sub(r" *#.*|-?0x[0-9a-f]+\((?=%r[ibs]p)", "", line.split("\t", 1)[1])
            # Keep only the name of a call's or jump's target, not its address.
            current.append(re.sub(r"[0-9a-f]+ <(.*?)(?:\+0x[0-9a-f]+)?>$", r"<\1>", code.strip()))
    return found


def of_the_kernel(file: Path, name: str) -> dict[str, list[str]]:
    """Map the names of a kernel's function and of its OpenMP regions to their instructions.

    In the names and the instructions, "kernel" replaces the kernel's name. ``name``: needed if ``file`` has several
    kernels.
    """
    found = functions(file)
    name = name if name in found else "kernel"
    pattern = re.compile(rf"{name}(\._omp_fn\.\d+)?")
    return {
        key.replace(name, "kernel"): [line.replace(name, "kernel") for line in code]
        for key, code in found.items()
        if pattern.fullmatch(key)
    }


def have_equal_values(one: Callable[..., Any], other: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
    """Whether two builds of a kernel write the same bits into copies of ``arguments``."""
    bits = []
    for kernel in (one, other):
        storages: dict[int, torch.UntypedStorage] = {}
        copies = [_copy(item, storages) for item in arguments]
        kernel(*copies)
        bits.append([torch.tensor([], dtype=torch.uint8).set_(copy).numpy().tobytes() for copy in storages.values()])
    return bits[0] == bits[1]


def _copy(argument: Any, storages: dict[int, torch.UntypedStorage]) -> Any:
    """Copy a tensor. Tensors with a common storage also share its copy in ``storages``."""
    if not isinstance(argument, torch.Tensor):
        return argument
    storage = argument.untyped_storage()
    copy = storages.setdefault(storage.data_ptr(), storage.clone())
    return torch.empty(0, dtype=argument.dtype).set_(copy, argument.storage_offset(), argument.shape, argument.stride())
