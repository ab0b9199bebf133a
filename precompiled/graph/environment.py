"""What compiles: the facts about this interpreter and this host that a compile depends on.

Two processes with equal facts may share artifacts. Nothing here starts a process or a compiler; torch's own hash of
its sources costs 0.7 s the first time in a process, so released builds are named by version and commit instead, and
builds from a checkout by the sizes and times of their compiler's sources.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

from precompiled.core.errors import PrecompiledError
from precompiled.torch_internals.user_code import custom_ops
from precompiled.torch_internals.worker import libdevice

# The environment variables that a compile depends on: a worker gets these from the client, and no others. Where they
# differ another worker is started, so variables that a launcher sets for each rank, job or run must not be among them.
_VARIABLES = (
    "PATH", "LD_LIBRARY_PATH", "CC", "CXX", "CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH",
    "VIRTUAL_ENV", "PYTHONPATH", "PYTHONUSERBASE", "HOME", "USER", "LANG", "LC_ALL", "XDG_CACHE_HOME",
)  # fmt: skip
# Among those, where Python looks for modules: not with -E and -I.
_OF_PYTHON = ("PYTHONPATH", "PYTHONUSERBASE")
_VARIABLE_PREFIXES = (
    "TORCHINDUCTOR_", "TORCH_CUDA_", "TORCH_COMPILE", "TRITON_", "CUDA", "CUBLAS", "NVIDIA_", "OMP_", "MKL_", "KMP_",
    "ATEN_",
)  # fmt: skip
# Among those, the ones that do not change compiled code, or that the pool sets itself.
_NOT_FOR_WORKERS = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_INJECTION32_PATH",  # a profiler or a sanitizer, of the program alone
        "CUDA_INJECTION64_PATH",
        "TORCH_COMPILE_DEBUG",
        "TORCH_COMPILE_JOB_ID",
        "TORCH_COMPILE_STICKY_PGO_KEY",
        "TRITON_HOME",  # where its caches are
    }
)
# The user's own caches, to which no worker may write; often one for each job.
_NOT_FOR_WORKERS_SUFFIX = "_CACHE_DIR"
# The variables whose values are in the key. Inductor's settings are in it as configuration already, but some variables
# are read where they are used. Directories and thread counts change where and how fast is compiled, not what.
_KEYED_PREFIXES = ("TORCHINDUCTOR_", "TRITON_")
_KEYED = ("CUDA_HOME", "TORCH_CUDA_ARCH_LIST")
# And those of the C++ compiler, where there are values on the CPU.
_KEYED_OF_CPP = ("LD_LIBRARY_PATH", "CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH")
_NOT_KEYED_SUFFIXES = ("_DIR", "_HOME", "_THREADS", "_START_METHOD", "_LIBCUDA_PATH")
# What torch tells of a GPU and Inductor reads (triton_heuristics.py, choices.py, template_heuristics/triton.py). Not
# the sizes of its memory and its cache, and not its clocks: see docs/decisions/0046.
_GPU = (
    "name", "major", "minor", "multi_processor_count", "max_threads_per_multi_processor", "regs_per_multiprocessor",
    "shared_memory_per_block_optin", "warp_size",
)  # fmt: skip


def variables(with_path: bool = False) -> dict[str, str]:
    """The environment variables of this process that a worker of its graphs gets.

    ``with_path``: with all folders where this process finds modules, those that the program has added as well.
    """
    found = {name: value for name, value in os.environ.items() if _is_for_workers(name)}
    if sys.flags.ignore_environment:
        for name in _OF_PYTHON:
            found.pop(name, None)
    if sys.flags.no_user_site:
        # Not in the key: of the packages that are found, torch, Triton and modules of operators are there themselves.
        found["PYTHONNOUSERSITE"] = "1"
    if with_path:
        own = (sys.prefix, sys.base_prefix)
        found["PYTHONPATH"] = os.pathsep.join(
            os.path.abspath(entry) for entry in sys.path if not os.path.abspath(entry).startswith(own)
        )
    return found


def _is_for_workers(name: str) -> bool:
    if name in _NOT_FOR_WORKERS or name.endswith(_NOT_FOR_WORKERS_SUFFIX) or _is_set_by_torch(name):
        return False
    return name in _VARIABLES or name.startswith(_VARIABLE_PREFIXES) or _is_vllms(name)


def _is_vllms(name: str) -> bool:
    """Whether it may change vLLM's operators and passes, as vLLM says itself. Not in a process without vLLM."""
    return name.startswith("VLLM_") and name in _vllms_variables("vllm.envs" in sys.modules)


@cache
def _vllms_variables(is_imported: bool) -> frozenset[str]:
    if not is_imported:
        return frozenset()
    return frozenset(sys.modules["vllm.envs"].compile_factors())


def _is_set_by_torch(name: str) -> bool:
    """Builds with an assembler of their own (2.11) name it here before their first compile for a GPU, for the rest of
    the process (torch/_inductor/runtime/compile_tasks.py), and others CUDA's mathematical library: what has compiled is
    no other environment for that.
    """
    if name == libdevice.VARIABLE:
        return libdevice.is_torchs() and name not in _began_with()
    own = os.path.join(os.path.dirname(torch.__file__), "bin", "ptxas")
    return name == "TRITON_PTXAS_PATH" and os.environ[name] == own


def facts(device: str, *, uses_cpu: bool = True, of_a_worker: bool = False) -> dict[str, Any]:
    """The facts for graphs on ``device``, as plain data. ``uses_cpu``: whether such a graph has values on the CPU.
    ``of_a_worker``: this process has no variables but those that a client gave it.
    """
    found = dict(_host_facts())
    if uses_cpu:
        found["compiler"] = _compiler()
    else:
        del found["cpu"]
    found["variables"] = {
        name: value for name, value in _keyed_variables(of_a_worker).items() if uses_cpu or name not in _KEYED_OF_CPP
    }
    if device.startswith("cuda"):
        properties = torch.cuda.get_device_properties(device)
        found["gpu"] = [getattr(properties, name, None) for name in _GPU]
        found["cuda"] = torch.version.cuda
    return found


def device_with(wanted: Mapping[str, Any]) -> tuple[str, str]:
    """What this process calls a device that has these facts, or "", and what differs on the one that is most like it.

    ``wanted``: as ``facts`` gives them.
    """
    devices = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if "gpu" in wanted else ["cpu"]
    problems = []
    for device in devices:
        here = facts(device, uses_cpu="cpu" in wanted)
        names = [name for name in sorted({*wanted, *here}) if wanted.get(name) != here.get(name)]
        if not names:
            return device, ""
        problems.append("; ".join(f"{name}: {wanted.get(name)!r}, here {here.get(name)!r}" for name in names))
    return "", min(problems, key=len, default="gpu: there is none here")


def _keyed_variables(of_a_worker: bool) -> dict[str, str]:
    return {name: os.environ[name] for name in sorted(os.environ) if _is_keyed(name, of_a_worker)}


def _is_keyed(name: str, of_a_worker: bool) -> bool:
    if name.startswith("VLLM_"):
        return of_a_worker or _is_vllms(name)
    if name.startswith(_KEYED_PREFIXES) and not name.endswith(_NOT_KEYED_SUFFIXES):
        return not _is_set_by_torch(name)
    return name in _KEYED or name in _KEYED_OF_CPP


@contextmanager
def unchanged() -> Iterator[None]:
    """In a worker: what the user's modules set of these variables while they are imported is taken back (cv2 adds to
    LD_LIBRARY_PATH each time). The client had it set, or had not, when it captured.
    """
    before = _keyed_variables(of_a_worker=True)
    try:
        yield
    finally:
        for name in _keyed_variables(of_a_worker=True).keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@cache
def _host_facts() -> dict[str, Any]:
    return {
        "python": f"{sys.implementation.cache_tag}-{platform.python_version()}",
        "machine": platform.machine(),
        "torch": f"{torch.__version__} {torch.version.git_version}{_development_digest()}",
        "triton": triton_version(),
        "cpu": _cpu(),
    }


@cache
def triton_version() -> str:
    """Triton's version without importing it (0.3 s), or "" where it is not installed."""
    import importlib.metadata

    for name in ("triton", "pytorch-triton", "triton-rocm"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def _cpu() -> str:
    """Instruction sets: an artifact with AVX-512 code must not be loaded on a CPU without it."""
    try:
        flags = _cpu_line("flags", "Features")
    except OSError:
        flags = platform.processor()
    digest = hashlib.sha256(" ".join(sorted(flags.split())).encode()).hexdigest()[:16]
    return f"{torch.backends.cpu.get_cpu_capability()} {digest}"


def _cpu_line(*names: str) -> str:
    """The first line of /proc/cpuinfo that begins so; "" where there is none. Raises OSError."""
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        return next((line for line in file if line.startswith(names)), "")


@cache
def cpu_in_words() -> dict[str, str]:
    """``model`` and ``flags`` of this CPU, for people: the facts have a digest of the flags."""
    try:
        model, flags = _cpu_line("model name"), _cpu_line("flags", "Features")
    except OSError:
        return {}
    return {"model": model.partition(":")[2].strip(), "flags": " ".join(sorted(flags.partition(":")[2].split()))}


def set_by_program() -> list[str]:
    """Variables of the facts that are not what they were when this process was started; [] where that is unknown."""
    began = _began_with()
    return [name for name, value in _keyed_variables(of_a_worker=False).items() if began and began.get(name) != value]


def _began_with() -> dict[str, str]:
    """This process's variables when it was started; none where that is unknown."""
    try:
        with open("/proc/self/environ", "rb") as file:
            return dict(os.fsdecode(item).partition("=")[::2] for item in file.read().split(b"\0") if item)
    except OSError:
        return {}


def _compiler() -> str:
    """Which C++ compiler Inductor would start: its path, size and time, which change with its version."""
    name = os.environ.get("CXX") or "g++"
    path = shutil.which(name.split()[0])
    if path is None:
        return f"{name} (absent)"
    real = os.path.realpath(path)
    status = os.stat(real)
    return f"{name} {real} {status.st_size} {int(status.st_mtime)}"


def _development_digest() -> str:
    """For builds from a checkout, whose version stays while their sources change; "" for released builds."""
    version = torch.__version__
    if "a0" not in version and "+git" not in version and "dev" not in version:
        return ""
    state = hashlib.sha256()
    root = Path(torch.__file__).parent
    for package in ("_inductor", "_functorch", "_dynamo", "_higher_order_ops", "_decomp", "_prims", "_refs"):
        for path in sorted((root / package).rglob("*.py")):
            status = path.stat()
            state.update(f"{path.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return f" sources {state.hexdigest()[:16]}"


def interpreter_of_a_worker(modules: Mapping[str, str] | None = None) -> Any:
    """The interpreter that a worker must run in; ``modules``: those of its graph's custom ops.

    Not classes and kernels of the program's, which a worker makes of their source.
    """
    from precompiled import wire

    modules = {name: digest for name, digest in (modules or {}).items() if not custom_ops.is_made_of_source(name)}

    return wire.Interpreter(
        executable=sys.executable,
        prefix=sys.prefix,
        python=platform.python_version(),
        torch=str(torch.__version__),
        triton=triton_version(),
        variables=variables(with_path=bool(modules)),
        modules=modules,
    )


def likely_device() -> str:
    """Where a graph that is not traced yet will probably run: on the GPU in a process that has used one."""
    return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_initialized() else "cpu"


def worker_for(device: str, modules: Mapping[str, str] | None = None, *, without_gpu: bool = False) -> tuple[Any, str]:
    """The interpreter and the device of a worker for graphs on what this process calls ``device``.

    ``without_gpu``: its device is a made-up one that says what ours does, and takes none of our GPU's memory. Raises
    PrecompiledError where there can be none.
    """
    interpreter = interpreter_of_a_worker(modules)
    if device == "cpu" or not without_gpu:
        return interpreter, device_of_a_worker(device)
    from precompiled.made_up_cuda import build, kinds

    try:
        build.check(build.installed())
    except build.CannotBuild as error:
        raise PrecompiledError(f"a worker without the GPU: {error}", error.action, code="no-made-up-gpu") from error
    interpreter.variables["CUDA_MADE_UP"] = kinds.like(torch.cuda.get_device_properties(device))
    return interpreter, f"cuda:{kinds.FIRST_UUID}"


def device_of_a_worker(device: str) -> str:
    """``"cpu"``, or ``"cuda:<UUID>"`` for the GPU, or the slice of one, that this process calls ``device``."""
    if device == "cpu":
        return device
    properties = torch.cuda.get_device_properties(device)
    # Of a slice of a GPU, torch tells the GPU's UUID: a worker pinned to that could be on another slice.
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip()
    if " MIG " in properties.name and first.startswith("MIG-"):
        return f"cuda:{first}"  # a process sees one slice, the first that it names
    return f"cuda:GPU-{properties.uuid}"
