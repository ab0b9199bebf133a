"""Provides a host with Triton kernels: an installed package, the program that launches them, and counts of compilers.

The program counts what Triton compiles. Wrappers count the processes of ``ptxas`` and of the C compiler.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support_host import Client, Host

from precompiled.store.triton_kernels import TritonKernels

PROGRAM = Path(__file__).parents[1] / "programs" / "triton_program.py"
LIBRARY = """
import triton
import triton.language as tl

__all__ = ["first", "second", "third", "fourth"]
"""
KERNEL = """
@triton.jit
def {name}(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=i < n) * {number}, mask=i < n)
"""
# Workers get no TOOLS_LOG, so their compilers have a file of their own. If HOLD names a pipe, each compiler process
# waits until the test has opened the pipe and closed it again.
WRAPPER = """#!/bin/sh
log=${{TOOLS_LOG:-{folder}/of-workers}}
case "$*" in --version) ;; *) echo {kind} >> "$log"; [ -z "$HOLD" ] || cat "$HOLD" ;; esac
exec {tool} "$@"
"""
OWN_MANAGER = """
from triton.runtime.cache import FileCacheManager

class OwnManager(FileCacheManager):
    pass
"""
FEW = ("added", "shifted", "closure of 1")


@dataclass
class Machine:
    """A host, an installed package with kernels, and wrappers that count compiler processes."""

    host: Host
    tools: dict[str, str]

    def start(self, name: str, *arguments: str, program: Path = PROGRAM, **variables: str) -> Client:
        """Start the program. ``name``: the folder of Triton's own cache, which is empty at first."""
        folder = self.host.root / name
        folder.mkdir(exist_ok=True)
        own = {"TRITON_CACHE_DIR": str(folder / "triton"), "TOOLS_LOG": str(folder / "tools")}
        command = ("-m", "precompiled", "run", "--", self.host.python, str(program), *arguments)
        given = {**self.tools, **own, "PRECOMPILED_TRITON": "on", **variables}
        return self.host.program(*command, env=given, forked=False)

    def run(self, name: str, *arguments: str, program: Path = PROGRAM, **variables: str) -> dict[str, Any]:
        client = self.start(name, *arguments, program=program, **variables)
        answer: dict[str, Any] = client.result()
        tools = self.tools_run(name)
        counts = {tool: tools.count(tool) for tool in ("ptxas", "cc")}
        return {**answer, **counts, "total": sum(answer["compiled"].values()), "said": client.text()}

    def tools_run(self, name: str) -> list[str]:
        """The compiler processes of the programs with this folder."""
        log = self.host.root / name / "tools"
        return log.read_text().split() if log.exists() else []

    @property
    def kernels(self) -> TritonKernels:
        return TritonKernels(self.host.store.root)


def tools(folder: Path, python: str = sys.executable) -> dict[str, str]:
    """Write the package and the wrappers. Returns the environment variables of programs that use both. ``python`` has
    Triton.
    """
    site = folder / "site-packages"
    (site / "kernel_library").mkdir(parents=True)
    numbered = enumerate(("first", "second", "third", "fourth"), 2)
    text = LIBRARY + "".join(KERNEL.format(name=name, number=number) for number, name in numbered)
    (site / "kernel_library" / "__init__.py").write_text(text)
    (site / "own_manager.py").write_text(OWN_MANAGER)
    found = {"PYTHONPATH": str(site)}
    command = [python, "-c", "import triton; print(triton.__file__)"]
    triton = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    nvidia = Path(triton).parent / "backends" / "nvidia" / "bin"
    for variable, kind, tool in (
        ("TRITON_PTXAS_PATH", "ptxas", nvidia / "ptxas"),
        ("TRITON_PTXAS_BLACKWELL_PATH", "ptxas", nvidia / "ptxas-blackwell"),
        ("CC", "cc", shutil.which("gcc")),
    ):
        path = folder / variable
        path.write_text(WRAPPER.format(kind=kind, tool=tool, folder=folder))
        path.chmod(0o755)
        found[variable] = str(path)
    return found


def once(*names: str) -> dict[str, int]:
    """The counts of these kernels if each was compiled (or found) once. Names in the counts have only their first
    word.
    """
    return {name.partition(" ")[0]: 1 for name in names}
