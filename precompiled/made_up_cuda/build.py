"""Compiles the made-up device for one installed torch. For each installed torch and each state of the sources, the
device has its own folder.

Any host on which Inductor compiles for a CPU has a C++ compiler. CUDA's headers come with the wheels of torch and
triton.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from precompiled.core import paths
from precompiled.made_up_cuda import kinds

SOURCES = Path(__file__).parent
# Names of the runtime's and the driver's functions. If torch's libraries need a function that these sources do not
# define, calling it is an error.
_OURS = re.compile(r"(__)?cuda[A-Z]\w*|cu(?!File)[A-Z]\w*")
# Names that c10/cuda/driver_api.cpp looks up when torch first calls the driver or NVML directly.
_ASSERTED = re.compile(rb"\br\.(cu[A-Z]\w+)_ INTERNAL ASSERT")
_DEVICE = ("device", "cubin", "driver", "captures", "runtime")
_ASK = ("libc10_cuda.so", "libtorch_cuda.so", "libtorch_python.so", "libtorch_cuda_linalg.so", "libcaffe2_nvrtc.so")


class CannotBuild(Exception):
    """The device cannot be built: torch is not a CUDA build, or the compiler is missing or failed.

    ``action`` says what the user can do, as a sentence without its full stop.
    """

    def __init__(self, message: str, action: str) -> None:
        super().__init__(message)
        self.action = action


class NoTorch(CannotBuild):
    """torch is not installed, so nothing would use a device."""


_GET_A_COMPILER = "Install g++ and binutils (Debian: `apt install g++`), or set CXX to a compiler for C++20"


@dataclass(frozen=True)
class Torch:
    """An installed torch, found without an import, because our library must be loaded before torch."""

    root: Path

    @property
    def libraries(self) -> Path:
        return self.root / "lib"

    @property
    def headers(self) -> list[Path]:
        site = self.root.parent
        found = [self.root / "include", self.root / "include/torch/csrc/api/include"]
        found += sorted(site.glob("nvidia/cu1[0-9]/include"))
        # CUDA's headers include files of the folder crt/. Only the package triton contains these files.
        return [*found, site / "triton/backends/nvidia/include"]


def find_torch() -> Torch:
    """The torch of this interpreter. Raises CannotBuild if torch is not a CUDA build."""
    try:
        root = Path(str(metadata.distribution("torch").locate_file("torch")))
    except metadata.PackageNotFoundError:
        raise NoTorch(f"torch is not installed for {sys.executable}", "Install a CUDA build of it") from None
    if not (root / "lib" / "libtorch_cuda.so").exists():
        raise CannotBuild(
            f"torch {metadata.version('torch')} of {sys.executable} is not a CUDA build: no lib/libtorch_cuda.so",
            "Install one (its version ends in +cu...); it needs neither a GPU nor a driver",
        )
    return Torch(root)


def check(torch: Torch) -> None:
    """Raise CannotBuild if a program or a header for the build is missing."""
    for program in (shlex.split(os.environ.get("CXX") or "g++")[0], "nm"):
        if shutil.which(program) is None:
            raise CannotBuild(f"the made-up GPU cannot be built: {program} is not on PATH", _GET_A_COMPILER)
    for header, where in (("cuda_runtime_api.h", "nvidia-cuda-runtime"), ("crt/host_defines.h", "triton")):
        if not any((folder / header).exists() for folder in torch.headers):
            raise CannotBuild(
                f"the made-up GPU cannot be built: {header} is not in {torch.root.parent}",
                f"Install torch from its wheels with their dependencies: {header} comes with {where}",
            )


def folder(torch: Torch) -> Path:
    """The folder for the libraries that are built for this torch. The folder may not exist yet."""
    digest = hashlib.sha256(f"{metadata.version('torch')} {torch.root}".encode())
    for source in sorted(SOURCES.glob("*")):
        if source.suffix in (".cpp", ".h") or source.name in ("build.py", "kinds.py"):
            digest.update(source.read_bytes())
    return paths.user_cache_dir() / "made-up-cuda" / digest.hexdigest()[:16]


def build(say: Callable[[str], None] = lambda text: None) -> Path:
    """The folder with the libraries and nvidia-smi. Builds the folder if it is missing (two minutes of one core)."""
    torch = find_torch()
    ready = folder(torch)
    if ready.is_dir():
        return ready
    check(torch)
    try:
        ready.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotBuild(
            f"the made-up GPU cannot be built in {ready.parent}: {error.strerror}",
            "Set XDG_CACHE_HOME to a directory that this user can write to",
        ) from error
    # Processes may start at the same time: one builds, and the others wait.
    with open(ready.parent / f"{ready.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if ready.is_dir():
            return ready
        say("the made-up CUDA device is built for this torch (two minutes, once)")
        work = Path(tempfile.mkdtemp(prefix=".building-", dir=ready.parent))
        try:
            _build(torch, work)
            os.rename(work, ready)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return ready


def _build(torch: Torch, into: Path) -> None:
    (into / "kinds.inc").write_text(kinds.as_c())
    include = [f"-I{path}" for path in (into, SOURCES, *torch.headers)]
    compiler = [*shlex.split(os.environ.get("CXX") or "g++"), "-std=c++20", "-O1", "-fPIC"]
    parts = {}
    for name in (*_DEVICE, "operators", "references"):
        parts[name] = into / f"{name}.o"
        _run([*compiler, "-c", *include, str(SOURCES / f"{name}.cpp"), "-o", str(parts[name])])
    device = [parts[name] for name in _DEVICE]
    (into / "missing.cpp").write_text(_missing(torch, device))
    _run([*compiler, "-c", *include, str(into / "missing.cpp"), "-o", str(into / "missing.o")])
    objects = [str(path) for path in (*device, into / "missing.o")]
    # Link one library for both interfaces, the driver's and the runtime's, because they share the table, the log and
    # the memory. The library has the driver's name, because triton and torch's libraries look for that name.
    _run([*compiler, "-shared", *objects, "-o", str(into / "libcuda.so.1"), "-Wl,-soname,libcuda.so.1", "-ldl"])
    linked = [
        f"-L{torch.libraries}",
        "-ltorch_cuda",
        "-ltorch_cpu",
        "-lc10_cuda",
        "-lc10",
        f"-Wl,-rpath,{torch.libraries}",
    ]
    _run(
        [
            *compiler,
            "-shared",
            str(parts["operators"]),
            str(parts["references"]),
            "-o",
            str(into / "operators.so"),
            *linked,
        ]
    )
    nvml = "libnvidia-ml.so.1"
    _run([*compiler, "-shared", str(SOURCES / "nvml.cpp"), "-o", str(into / nvml), f"-Wl,-soname,{nvml}"])
    smi = [*compiler, *include, str(SOURCES / "nvidia_smi.cpp"), str(parts["device"]), "-o", str(into / "nvidia-smi")]
    _run(smi)
    for leftover in (*into.glob("*.o"), into / "missing.cpp", into / "kinds.inc"):
        leftover.unlink()


def _missing(torch: Torch, objects: Iterable[Path]) -> str:
    """C++ code that defines each function that torch needs and our sources lack. A call prints the name and fails."""
    wanted: set[str] = set()
    libraries = [torch.libraries / name for name in _ASK]
    for line in _run(
        ["nm", "-D", "--undefined-only", *(str(path) for path in libraries if path.exists())]
    ).splitlines():
        name = line.split()[-1].split("@")[0] if line.split() else ""
        if _OURS.fullmatch(name):
            wanted.add(name)
    wanted.update(name.decode() for name in _ASSERTED.findall((torch.libraries / "libc10_cuda.so").read_bytes()))
    defined = {
        line.split()[-1] for line in _run(["nm", "--defined-only", *map(str, objects)]).splitlines() if line.split()
    }
    lines = ["#include <cuda_runtime_api.h>", "namespace made_up { cudaError_t refuse(const char*); }"]
    # The definitions need other C++ names, because the headers declare these functions with arguments.
    for number, name in enumerate(sorted(wanted - defined)):
        lines.append(f'extern "C" int missing_{number}() __asm__("{name}");')
        lines.append(f'extern "C" int missing_{number}() {{ return made_up::refuse("{name}"); }}')
    return "\n".join(lines) + "\n"


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CannotBuild(f"{command[0]} does not run: {error}", _GET_A_COMPILER) from error
    if done.returncode != 0:
        raise CannotBuild(
            f"the made-up GPU cannot be built: {shlex.join(command)} says\n{done.stderr[-3000:]}", _GET_A_COMPILER
        )
    return done.stdout


def main() -> int:
    """Print the folder. With --json, print {"folder"}, or {"problem", "action"} and exit with status 1."""
    try:
        found = build(lambda text: print(text, file=sys.stderr, flush=True))  # noqa: T201
    except CannotBuild as error:
        if "--json" not in sys.argv:
            raise SystemExit(f"made-up CUDA: {error}. {error.action}") from None
        print(json.dumps({"problem": str(error), "action": error.action}))  # noqa: T201
        return 1
    print(json.dumps({"folder": str(found)}) if "--json" in sys.argv else found)  # noqa: T201
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
