"""Extracts the instructions of a kernel from a ``.so``, so that two builds can be compared."""

from __future__ import annotations

import re
import subprocess
from functools import lru_cache
from pathlib import Path


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
