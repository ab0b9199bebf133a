"""doctor's checks of the host: inotify, C++ compiler, Python's headers, GPUs, memory."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

from precompiled import parts
from precompiled.core.check import Check, ask_program
from precompiled.core.config import Settings
from precompiled.core.words import format_count, human_bytes

FEW_WATCHES = 1024
FEW_INSTANCES_LEFT = 8
LITTLE_MEMORY = 2 << 30


def run(settings: Settings) -> Iterator[Check]:
    yield inotify(_limit("max_user_watches"), _limit("max_user_instances"), _instances_used())
    yield compiler(os.environ)
    yield headers(Path(sysconfig.get_path("include")) / "Python.h")
    yield gpus(os.environ)
    if (made_up := parts.TARGETS.get()) is not None:
        yield targets(made_up)
    yield memory()


def inotify(watches: int | None, instances: int | None, used: int) -> Check:
    """Whether inotify can report saved files to `precompiled watch`, which otherwise polls them."""
    slow = "`precompiled watch` polls files, so it notices a save later"
    if watches is None or instances is None:
        return Check("inotify", "warn", f"this kernel has no inotify: {slow}", "None is needed")
    if used + FEW_INSTANCES_LEFT > instances:
        return Check(
            "inotify",
            "warn",
            f"{used} of {format_count(instances, 'inotify instance')} used: {slow}",
            "`sysctl fs.inotify.max_user_instances=1024`",
        )
    if watches < FEW_WATCHES:
        few = f"only {format_count(watches, 'inotify watch', 'inotify watches')}"
        return Check("inotify", "warn", f"{few}: {slow}", "`sysctl fs.inotify.max_user_watches=524288`")
    text = f"{used} of {format_count(instances, 'instance')} used, {format_count(watches, 'watch', 'watches')}"
    return Check("inotify", "ok", text)


def compiler(variables: Mapping[str, str]) -> Check:
    """Whether the C++ compiler that Inductor will use runs: $CXX, or g++."""
    name = variables.get("CXX") or "g++"
    origin = "CXX" if variables.get("CXX") else "the default"
    path = shutil.which(name, path=variables.get("PATH"))
    if path is None:
        return Check(
            "compiler",
            "fail",
            f"the C++ compiler {name} ({origin}) is not on PATH: no CPU graph can be compiled",
            "Install g++ (Debian: `apt install g++`), or set CXX to a compiler",
        )
    status, said = ask_program([path, "--version"])
    if status != 0:
        return Check("compiler", "fail", f"`{path} --version` fails: {said[:200]}", "Reinstall it, or set CXX")
    return Check("compiler", "ok", f"{path}: {said.splitlines()[0] if said else ''}")


def headers(path: Path) -> Check:
    """Whether Python's headers exist, which Inductor's C++ kernels need."""
    if path.exists():
        return Check("headers", "ok", str(path))
    return Check(
        "headers",
        "fail",
        f"{path} is missing: Inductor's C++ kernels cannot be built",
        "Install Python's headers (Debian: `apt install python3-dev`)",
    )


def gpus(variables: Mapping[str, str]) -> Check:
    """List the GPUs that graphs can be compiled for, as nvidia-smi reports them."""
    visible = variables.get("CUDA_VISIBLE_DEVICES")
    limited = "" if visible is None else f"; CUDA_VISIBLE_DEVICES={visible}"
    status, said = ask_program(["nvidia-smi", "-L"])
    return judge_gpus(status, said, limited, any(Path("/dev").glob("nvidia[0-9]*")))


def judge_gpus(status: int, said: str, limited: str, device_files: bool) -> Check:
    found = [line for line in said.splitlines() if line.startswith("GPU ")]
    if status == 0 and found:
        names = "; ".join(line.partition(" (UUID")[0] for line in found)
        return Check("gpus", "ok", f"{names}{limited}")
    if device_files:
        return Check(
            "gpus",
            "warn",
            f"there are NVIDIA devices, but `nvidia-smi -L` fails: {said or 'it is not on PATH'}",
            "Check the driver; the daemon gets the GPUs from nvidia-smi",
        )
    return Check("gpus", "ok", f"none{limited}; graphs on the CPU are served")


def targets(made_up: parts.TargetsProtocol) -> Check:
    """Whether artifacts can be made for GPUs that this host lacks. Always ok, because the feature is optional."""
    found, action = made_up.available()
    return Check("targets", "ok", found, action)


def memory() -> Check:
    import psutil  # type: ignore[import-untyped, unused-ignore]

    available = psutil.virtual_memory().available
    if available < LITTLE_MEMORY:
        return Check(
            "memory",
            "warn",
            f"{human_bytes(available)} available: a compile may run out of memory",
            "Close programs, or use fewer workers (`precompiled config set workers N`)",
        )
    return Check("memory", "ok", f"{human_bytes(available)} available")


def _limit(name: str) -> int | None:
    try:
        return int(Path("/proc/sys/fs/inotify", name).read_text())
    except (OSError, ValueError):
        return None


def _instances_used() -> int:
    """How many inotify instances this user's processes hold."""
    uid, used = os.getuid(), 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid != uid:
                continue
            used += sum(os.readlink(entry.path) == "anon_inode:inotify" for entry in os.scandir(process / "fd"))
        except OSError:
            continue  # the process has ended
    return used
