"""Support: builds an extension with C++ operators (programs/library_ops). The build takes half a minute per process."""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

import torch
from torch.utils import cpp_extension

SOURCE = Path(__file__).parent / "programs" / "library_ops" / "ops.cpp"
EXTENSION = f"pc_extension{sysconfig.get_config_var('EXT_SUFFIX')}"
NEEDED = "libpc_width.so"


def build(folder: Path) -> Path:
    """Copy the extension, and the shared library that it links to, into a folder. Returns the extension's path."""
    width(folder, 2)
    shutil.copy(_built() / EXTENSION, folder)
    return folder / EXTENSION


def width(folder: Path, width: int) -> None:
    """Build the shared library that the extension links to. ``width`` is the number of rows that ``widened`` adds."""
    source = f'extern "C" long pc_width() {{ return {width}; }}'
    command = ["g++", "-shared", "-fPIC", f"-Wl,-soname,{NEEDED}", "-x", "c++", "-", "-o", f"{folder / NEEDED}.new"]
    subprocess.run(command, input=source, text=True, check=True, capture_output=True)
    Path(f"{folder / NEEDED}.new").rename(folder / NEEDED)  # like linkers: a process may have mapped the old file


@functools.cache
def _built() -> Path:
    directory = tempfile.TemporaryDirectory(prefix="pc-extension-")
    atexit.register(directory.cleanup)
    folder = Path(directory.name)
    width(folder, 0)
    includes = [*cpp_extension.include_paths(), sysconfig.get_paths()["include"]]
    libraries = cpp_extension.library_paths()
    subprocess.run(
        [
            "g++",
            "-shared",
            "-fPIC",
            "-O0",
            "-std=c++20",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            *(f"-I{path}" for path in includes),
            str(SOURCE),
            "-o",
            str(folder / EXTENSION),
            *(f"-L{path}" for path in [*libraries, str(folder)]),
            "-lc10",
            "-ltorch_cpu",
            "-ltorch",
            "-lpc_width",
            "-Wl,-rpath,$ORIGIN",
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    return folder
