"""The instructions of a kernel in a ``.so``, so that two builds of it can be compared."""

from __future__ import annotations

import re
import subprocess
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=64)
def functions(file: Path) -> dict[str, list[str]]:
    """The instructions of each function: without addresses, and without the places of spilled registers.

    Which of its slots on the stack a register is spilled to, GCC decides by an order that another unit changes.
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
            # Of what is called or jumped to, the name.
            current.append(re.sub(r"[0-9a-f]+ <(.*?)(?:\+0x[0-9a-f]+)?>$", r"<\1>", code.strip()))
    return found


def of_the_kernel(file: Path, name: str) -> dict[str, list[str]]:
    """A kernel's function, and those that OpenMP's parallel regions become, under the name "kernel".

    ``name``: what it is called where several are in ``file``.
    """
    found = functions(file)
    name = name if name in found else "kernel"
    pattern = re.compile(rf"{name}(\._omp_fn\.\d+)?")
    return {
        key.replace(name, "kernel"): [line.replace(name, "kernel") for line in code]
        for key, code in found.items()
        if pattern.fullmatch(key)
    }
