"""--target: run a command on a made-up GPU, to compile for a GPU that this host lacks (docs/guides/targets.md)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from precompiled.core.errors import PrecompiledError
from precompiled.core.paths import TARGET_VARIABLE
from precompiled.core.words import format_count
from precompiled.made_up_cuda.kinds import KINDS, Kind

_Function = TypeVar("_Function", bound=Callable[..., Any])
_FORM = re.compile(r"(?:(?P<code>[a-z]+\d+)|(?:cuda:)?sm_(?P<capability>\d+)a?)(?:x(?P<count>[1-9]\d?))?")


@dataclass(frozen=True)
class WantedDevices:
    """The devices that a command will see: ``count`` devices of one kind."""

    kind: Kind
    count: int

    def __str__(self) -> str:
        return format_count(self.count, self.kind.name, self.kind.name)


class Target(click.ParamType):
    """The click type of --target."""

    name = "target"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> WantedDevices:
        return parse(value) if isinstance(value, str) else value


def option(function: _Function) -> _Function:
    """Decorator: give a command the option --target, as the argument ``target``."""
    add = click.option(
        "--target",
        type=Target(),
        metavar="KIND",
        help=f"Compile for a GPU that this host lacks: {', '.join(KINDS)}, cuda:sm_80, or several (h100x8). "
        "The values that the command computes are meaningless.",
    )
    return add(function)


def parse(text: str) -> WantedDevices:
    """Parse a target: a kind of GPU, and a count (``h100``, ``h100x8``).

    A capability (``cuda:sm_80``) names a kind if no other kind has this capability.

    Raises PrecompiledError.
    """
    parts = _FORM.fullmatch(text.strip().lower())
    if parts is None:
        raise _unknown(text, "is not a kind of GPU")
    count = int(parts["count"] or 1)
    if parts["capability"] is None:
        if (kind := KINDS.get(parts["code"])) is None:
            raise _unknown(text, "is not a kind of GPU that can be made up")
        return WantedDevices(kind, count)
    fitting = [kind for kind in KINDS.values() if f"{kind.major}{kind.minor}" == parts["capability"]]
    if len(fitting) != 1:
        # A key contains the GPU's name and number of multiprocessors, so kinds cannot share artifacts.
        names = " and ".join(kind.code for kind in fitting)
        why = f"is {names}, which have keys of their own" if fitting else "is not the architecture of a known kind"
        raise _unknown(text, why)
    return WantedDevices(fitting[0], count)


def _unknown(text: str, why: str) -> PrecompiledError:
    known = ", ".join(f"{kind.code} ({kind.name}, sm_{kind.major}{kind.minor})" for kind in KINDS.values())
    return PrecompiledError(f"the target {text} {why}", f"There are {known}", code="unknown-target")


def warning(target: WantedDevices) -> str:
    """The warning to print before a command runs on made-up devices."""
    return (
        f"precompiled: MADE-UP GPU. The command sees {target}, which this host lacks. torch's operators run on the "
        "CPU and Triton's kernels do not run, so everything that the command computes is meaningless. What it "
        "compiles is for the real GPU."
    )


def variables(target: WantedDevices, cmd: Sequence[str], caches: Path) -> dict[str, str]:
    """Environment variables that make ``cmd`` run on made-up devices.

    ``caches``: the directory for the command's Inductor and Triton caches. The caches' measurements are meaningless.
    Builds the device for the command's torch, if the command's interpreter can be found. Raises PrecompiledError if the
    device cannot be built.
    """
    if (python := interpreter(cmd)) is not None:
        build(python)
    numbers = range(target.count)
    return {
        "CUDA_MADE_UP": ",".join(target.kind.code for _ in numbers),
        # Hide the host's own GPUs, which NVML would count.
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, numbers)),
        TARGET_VARIABLE: target.kind.code,
        "PRECOMPILED_PROGRESS": "0",  # the command never runs compiled code, so there is no progress to show
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
    }


def interpreter(cmd: Sequence[str]) -> str | None:
    """The Python interpreter that runs ``cmd``: the command itself, or the one in its `#!` line; None if unknown."""
    path = shutil.which(cmd[0])
    if path is None or re.fullmatch(r"python[\d.]*", os.path.basename(path)):
        return path
    try:
        with open(path, "rb") as file:
            first = file.readline(1000)
    except OSError:
        return None
    words = first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = words[1:]
    if words and re.fullmatch(r"python[\d.]*", os.path.basename(words[0])):
        return shutil.which(words[0])
    return None


def build(python: str) -> None:
    """Build the device for this interpreter's torch. Raises PrecompiledError if something is missing."""
    command = [python, "-m", "precompiled.made_up_cuda.build", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=None, text=True, check=False)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        raise PrecompiledError(
            f"{python} cannot build a made-up GPU: it ended with status {done.returncode}",
            "See its output above, and install precompiled in its environment",
            code="target-unavailable",
        ) from None
    if "problem" in found:
        raise PrecompiledError(found["problem"], found["action"], code="target-unavailable")


def available() -> tuple[str, str]:
    """For `precompiled doctor`: whether this interpreter can simulate GPUs, and what to do if it cannot."""
    from precompiled.made_up_cuda.build import CannotBuild, check, find_torch

    try:
        check(find_torch())
    except CannotBuild as error:
        return f"none can be made up: {error}", f"Only for `--target`: {error.action}"
    return f"`--target` makes artifacts for {', '.join(KINDS)}", ""
