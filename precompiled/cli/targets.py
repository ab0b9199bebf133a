"""--target: run a command on a made-up GPU, to compile for a GPU that this host lacks (docs/guides/targets.md)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from precompiled.core.errors import PrecompiledError
from precompiled.core.paths import TARGET_VARIABLE
from precompiled.core.words import counted
from precompiled.made_up_cuda.kinds import KINDS, Kind

_FORM = re.compile(r"(?:(?P<code>[a-z]+\d+)|(?:cuda:)?sm_(?P<capability>\d+)a?)(?:x(?P<count>[1-9]\d?))?")


@dataclass(frozen=True)
class WantedDevices:
    """What a command is to see: ``count`` devices of a kind."""

    kind: Kind
    count: int

    def __str__(self) -> str:
        return counted(self.count, self.kind.name, self.kind.name)


class Target(click.ParamType):
    """A click type."""

    name = "target"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> WantedDevices:
        return parse(value) if isinstance(value, str) else value


option = click.option(
    "--target", type=Target(), metavar="KIND",
    help=f"Compile for a GPU that this host lacks: {', '.join(KINDS)}, cuda:sm_80, or several (h100x8). "
    "What the command itself computes is meaningless.",
)  # fmt: skip


def parse(text: str) -> WantedDevices:
    """A kind of GPU (``h100``, ``cuda:sm_80`` where one kind has it) and how many (``h100x8``). Raises
    PrecompiledError.
    """
    parts = _FORM.fullmatch(text.strip().lower())
    if parts is None:
        raise _unknown(text, "is no kind of GPU")
    count = int(parts["count"] or 1)
    if parts["capability"] is None:
        if (kind := KINDS.get(parts["code"])) is None:
            raise _unknown(text, "is no kind of GPU that can be made up")
        return WantedDevices(kind, count)
    fitting = [kind for kind in KINDS.values() if f"{kind.major}{kind.minor}" == parts["capability"]]
    if len(fitting) != 1:
        # The key has the GPU's name and its multiprocessors: an artifact for one kind is none for the other.
        names = " and ".join(kind.code for kind in fitting)
        raise _unknown(text, f"is {names}, which have keys of their own" if fitting else "is no kind's architecture")
    return WantedDevices(fitting[0], count)


def _unknown(text: str, why: str) -> PrecompiledError:
    known = ", ".join(f"{kind.code} ({kind.name}, sm_{kind.major}{kind.minor})" for kind in KINDS.values())
    return PrecompiledError(f"the target {text} {why}", f"There are {known}", code="unknown-target")


def warning(target: WantedDevices) -> str:
    """What people must know before they believe anything that such a command says."""
    return (
        f"precompiled: MADE-UP GPU. The command sees {target}, which this host lacks. torch's operators run on the "
        "CPU and Triton's kernels do not run, so everything that the command computes is meaningless. What it "
        "compiles is for the real GPU."
    )


def variables(target: WantedDevices, cmd: Sequence[str], caches: Path) -> dict[str, str]:
    """What ``cmd`` gets to run on made-up devices; ``caches``: for what it measures itself, which is made up, too.

    Builds the device for the command's torch, where it can be told and is not built. Raises PrecompiledError where it
    cannot be.
    """
    if (python := interpreter(cmd)) is not None:
        build(python)
    numbers = range(target.count)
    return {
        "CUDA_MADE_UP": ",".join(target.kind.code for _ in numbers),
        # Those of the host, if it has some, are not meant, and NVML would count them.
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, numbers)),
        TARGET_VARIABLE: target.kind.code,
        "PRECOMPILED_PROGRESS": "0",  # it never runs compiled
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
    }


def interpreter(cmd: Sequence[str]) -> str | None:
    """The Python that ``cmd`` is run by: itself, or that of its first line; None where nobody can tell."""
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
    """Have the device built for this interpreter's torch. Raises PrecompiledError with what is missing."""
    command = [python, "-m", "precompiled.made_up_cuda.build", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=None, text=True, check=False)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        raise PrecompiledError(
            f"{python} cannot build a made-up GPU: it ended with status {done.returncode}",
            "Its last words are above; its environment needs precompiled", code="target-unavailable",
        ) from None  # fmt: skip
    if "problem" in found:
        raise PrecompiledError(found["problem"], found["action"], code="target-unavailable")


def available() -> tuple[str, str]:
    """For `precompiled doctor`: whether this interpreter can do it, and what to do where it cannot."""
    from precompiled.made_up_cuda.build import CannotBuild, check, installed

    try:
        check(installed())
    except CannotBuild as error:
        return f"none can be made up: {error}", f"Only for `--target`: {error.action}"
    return f"`--target` makes artifacts for {', '.join(KINDS)}", ""

