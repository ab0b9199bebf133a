"""Makes a program's section ``environment``: the facts about this interpreter and host that a compile depends on.

Two processes with equal facts may share artifacts. This module starts no process. Torch's own hash of its sources takes
0.7 s per process, so this module uses other facts. Version and commit identify a released build of torch. For a build
from a checkout, this module adds the sizes and times of source files of torch (``_development_digest``).
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
from typing import TYPE_CHECKING, Any

import torch

from precompiled import parts
from precompiled.core import interruptions
from precompiled.core.errors import PrecompiledError
from precompiled.torch_internals.user_code import custom_ops
from precompiled.torch_internals.worker import libdevice

if TYPE_CHECKING:
    from precompiled.wire import Interpreter

# The environment variables that a compile depends on. A worker gets only these from the client. The daemon starts a
# separate worker for each combination of values, so the list has no variables that a launcher sets per rank, job or
# run.
_VARIABLES = tuple(
    """
    CC CPATH CPLUS_INCLUDE_PATH CXX HOME LANG LC_ALL LD_LIBRARY_PATH LIBRARY_PATH PATH PYTHONPATH PYTHONUSERBASE USER
    VIRTUAL_ENV XDG_CACHE_HOME
    """.split()
)
# Python finds modules by these variables. With -E or -I, Python ignores the variables.
_OF_PYTHON = ("PYTHONPATH", "PYTHONUSERBASE")
_VARIABLE_PREFIXES = tuple(
    "ATEN_ CUBLAS CUDA KMP_ MKL_ NVIDIA_ OMP_ TORCHINDUCTOR_ TORCH_COMPILE TORCH_CUDA_ TRITON_".split()
)
# Variables that match a prefix above but are left out, because they do not change compiled code, or because the
# daemon's pool sets them. CUDA_INJECTION*_PATH name a profiler or sanitizer of the program, and TRITON_HOME names
# triton's caches.
_NOT_FOR_WORKERS = frozenset(
    """
    CUDA_DEVICE_ORDER CUDA_INJECTION32_PATH CUDA_INJECTION64_PATH CUDA_LAUNCH_BLOCKING CUDA_VISIBLE_DEVICES
    TORCH_COMPILE_DEBUG TORCH_COMPILE_JOB_ID TORCH_COMPILE_STICKY_PGO_KEY TRITON_HOME
    """.split()
)
# Suffix of variables that name the user's caches. A worker must not write to them.
_NOT_FOR_WORKERS_SUFFIX = "_CACHE_DIR"
# Variables whose values are in the key. The configs section already has Inductor's settings, but torch reads some
# variables directly. Variables for directories and numbers of threads are left out, because they do not affect a
# compile's result.
_KEYED_PREFIXES = ("TORCHINDUCTOR_", "TRITON_")
_KEYED = ("CUDA_HOME", "TORCH_CUDA_ARCH_LIST")
# Variables of the C++ compiler. These variables are in the keys of graphs with values on the CPU.
_KEYED_OF_CPP = ("LD_LIBRARY_PATH", "CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH")
_NOT_KEYED_SUFFIXES = ("_DIR", "_HOME", "_THREADS", "_START_METHOD", "_LIBCUDA_PATH")
# The properties of a GPU that Inductor reads (triton_heuristics.py, choices.py, template_heuristics/triton.py). Clock
# rates, and the sizes of memory and cache, are left out (docs/decisions/0046). The key has the values in this order.
_GPU = tuple(
    """
    name major minor multi_processor_count max_threads_per_multi_processor regs_per_multiprocessor
    shared_memory_per_block_optin warp_size
    """.split()
)


def variables(with_path: bool = False) -> dict[str, str]:
    """Return the environment variables of this process that its workers get.

    ``with_path``: include all folders where this process finds modules, even those that the program has added.
    """
    found = {name: value for name, value in os.environ.items() if _is_for_workers(name)}
    if sys.flags.ignore_environment:
        for name in _OF_PYTHON:
            found.pop(name, None)
    if sys.flags.no_user_site:
        # PYTHONNOUSERSITE is not in the key, because it only affects which packages Python finds. Instead, the key has
        # the versions of torch and Triton and the digests of the operators' modules.
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
    """Whether vLLM is imported and lists the variable as one that may change vLLM's operators and passes."""
    return name.startswith("VLLM_") and name in _vllms_variables("vllm.envs" in sys.modules)


@cache
def _vllms_variables(is_imported: bool) -> frozenset[str]:
    if not is_imported:
        return frozenset()
    return frozenset(sys.modules["vllm.envs"].compile_factors())


def _is_set_by_torch(name: str) -> bool:
    """Whether torch itself has set a variable. Such a variable is not part of the environment.

    Builds with their own assembler (torch 2.11) set TRITON_PTXAS_PATH at their first compile for a GPU
    (torch/_inductor/runtime/compile_tasks.py). Other builds set the path of CUDA's math library. If these variables
    counted, the first compile would change the environment.
    """
    if name == libdevice.VARIABLE:
        return libdevice.is_torchs() and name not in _began_with()
    own = os.path.join(os.path.dirname(torch.__file__), "bin", "ptxas")
    return name == "TRITON_PTXAS_PATH" and os.environ[name] == own


def facts(device: str, *, uses_cpu: bool = True, of_a_worker: bool = False) -> dict[str, Any]:
    """The facts for graphs on ``device``, as plain data.

    ``uses_cpu``: whether the graphs have values on the CPU. ``of_a_worker``: whether this process is a worker, whose
    variables come from a client.
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


def device_with(wanted: Mapping[str, object]) -> tuple[str, str]:
    """Find a device of this process that has the facts ``wanted`` (from ``facts``).

    Returns (device, ""), or ("", how the most similar device differs).
    """
    devices = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if "gpu" in wanted else ["cpu"]
    problems = []
    for device in devices:
        here = facts(device, uses_cpu="cpu" in wanted)
        names = [name for name in sorted({*wanted, *here}) if wanted.get(name) != here.get(name)]
        if not names:
            return device, ""
        problems.append("; ".join(f"{name}: {wanted.get(name)!r}, here {here.get(name)!r}" for name in names))
    return "", min(problems, key=len, default="gpu: this host has none")


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
    """Undo what the user's modules do to keyed variables when a worker imports these modules.

    For example, cv2 adds to LD_LIBRARY_PATH. The variables must stay as the client captured them.
    """
    before = _keyed_variables(of_a_worker=True)
    try:
        yield
    finally:
        for name in _keyed_variables(of_a_worker=True).keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@cache
def _host_facts() -> dict[str, object]:
    return {
        "python": f"{sys.implementation.cache_tag}-{platform.python_version()}",
        "machine": platform.machine(),
        "torch": f"{torch.__version__} {torch.version.git_version}{_development_digest()}",
        "triton": triton_version(),
        "cpu": _cpu(),
    }


@cache
def triton_version() -> str:
    """Triton's version, or "" if it is not installed. Does not import triton, because the import takes 0.3 s."""
    import importlib.metadata

    for name in ("triton", "pytorch-triton", "triton-rocm"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def _cpu() -> str:
    """The CPU's instruction sets, because an artifact with AVX-512 code must not be loaded on a CPU without AVX-512."""
    try:
        flags = _cpu_line("flags", "Features")
    except OSError as error:
        interruptions.pass_on(error)
        flags = platform.processor()
    digest = hashlib.sha256(" ".join(sorted(flags.split())).encode()).hexdigest()[:16]
    return f"{torch.backends.cpu.get_cpu_capability()} {digest}"


def _cpu_line(*names: str) -> str:
    """The first line of /proc/cpuinfo that starts with one of the names, or "". Raises OSError."""
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        return next((line for line in file if line.startswith(names)), "")


@cache
def cpu_in_words() -> dict[str, str]:
    """``model`` and ``flags`` of this CPU, for reports."""
    try:
        model, flags = _cpu_line("model name"), _cpu_line("flags", "Features")
    except OSError as error:
        interruptions.pass_on(error)
        return {}
    return {"model": model.partition(":")[2].strip(), "flags": " ".join(sorted(flags.partition(":")[2].split()))}


def set_by_program() -> list[str]:
    """Keyed variables that have changed since the start of this process.

    Empty if the values at the start are unknown.
    """
    began = _began_with()
    return [name for name, value in _keyed_variables(of_a_worker=False).items() if began and began.get(name) != value]


def _began_with() -> dict[str, str]:
    """The environment variables at the start of this process; empty if unknown."""
    try:
        with open("/proc/self/environ", "rb") as file:
            return dict(os.fsdecode(item).partition("=")[::2] for item in file.read().split(b"\0") if item)
    except OSError as error:
        interruptions.pass_on(error)
        return {}


def _compiler() -> str:
    """Path, size and time of the C++ compiler that Inductor would start. They change with the compiler's version."""
    name = os.environ.get("CXX") or "g++"
    path = shutil.which(name.split()[0])
    if path is None:
        return f"{name} (absent)"
    real = os.path.realpath(path)
    status = os.stat(real)
    return f"{name} {real} {status.st_size} {int(status.st_mtime)}"


def _development_digest() -> str:
    """A digest for builds from a checkout; "" for released builds.

    The version of a build from a checkout stays the same when its sources change.
    """
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


def interpreter_of_a_worker(modules: Mapping[str, str] | None = None) -> Interpreter:
    """The interpreter in which a worker must run. ``modules``: the modules of the graph's custom operators.

    The modules of the program's own classes and kernels are left out, because a worker builds these from their source.
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
    """The device on which an untraced graph will probably run: the GPU if this process has used a GPU."""
    return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_initialized() else "cpu"


def gpu_model(device: str) -> str:
    """The model of a GPU."""
    return str(torch.cuda.get_device_properties(device).name)


def worker_for(
    device: str, modules: Mapping[str, str] | None = None, *, without_gpu: bool = False
) -> tuple[Interpreter, str]:
    """Return the interpreter and the device of a worker for graphs on ``device`` (this process's name of the device).

    ``without_gpu``: the worker gets a made-up device with this GPU's properties, and uses none of the GPU's memory.
    Raises PrecompiledError if that device cannot be built.
    """
    interpreter = interpreter_of_a_worker(modules)
    if device == "cpu" or not without_gpu:
        return interpreter, device_of_a_worker(device)
    made_up = parts.MADE_UP_CUDA.get()
    if made_up is None:
        raise PrecompiledError(
            "a worker without the GPU: made-up CUDA is not installed",
            "Install all of precompiled, or unset `compile_without_gpu`",
            code="no-made-up-gpu",
        )
    # ``stand_in`` calls its argument only if torch has CUDA, because only then torch can read the properties.
    named = made_up.stand_in(lambda: torch.cuda.get_device_properties(device))
    interpreter.variables["CUDA_MADE_UP"], uuid = named
    return interpreter, f"cuda:{uuid}"


def device_of_a_worker(device: str) -> str:
    """``"cpu"``, or ``"cuda:<UUID>"`` for the GPU or MIG slice that this process calls ``device``."""
    if device == "cpu":
        return device
    properties = torch.cuda.get_device_properties(device)
    # For a MIG slice, torch reports the UUID of the whole GPU. A worker with that UUID could run on another slice.
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip()
    if " MIG " in properties.name and first.startswith("MIG-"):
        return f"cuda:{first}"  # a process sees only the first slice in the list
    return f"cuda:GPU-{properties.uuid}"
