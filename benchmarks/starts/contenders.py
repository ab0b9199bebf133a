"""Defines the compared ways to start a compiled model: what each way needs, and what makes its sample valid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness.hosts import IN_PIECES, PACKAGES
from benchmarks.models.suite import SHAPES, TASKS


@dataclass(frozen=True)
class Contender:
    """One way to start a compiled model.

    - ``way``: program.py's way to compile; ``env``: environment variables of the process
    - ``leaves``: the kind of caches that the contender leaves on its host; ``needs``: the kind that it starts with
    - ``fresh_cache``: start with an empty Inductor cache even if ``needs`` is set
    - ``bytes_of``: the path of files that the contender leaves on its host
    - ``state``, ``source``: what precompiled must report for each graph after the first call, and ``finally_source`` at
      the end. Otherwise, the sample is "unexpected".
    - ``in_pieces``: graphs with equal layers first run in pieces, so the artifact of the whole graph may come at any
      step
    """

    name: str
    title: str
    way: str = "compile"
    env: Mapping[str, str] = field(default_factory=dict)
    hook: bool = False
    daemon: bool = False
    leaves: str = ""
    needs: str = ""
    fresh_cache: bool = False
    bytes_of: str = "inductor"
    spec: Mapping[str, Any] = field(default_factory=dict)
    tasks: tuple[str, ...] = TASKS
    shapes: tuple[str, ...] = SHAPES
    state: str = ""
    source: str | None = None
    finally_source: str = ""
    in_pieces: bool = False


MODE = "TORCHINDUCTOR_FX_COMPILE_MODE"
_AOTI: Mapping[str, Any] = {"tasks": ("inference",), "shapes": ("static",), "bytes_of": "model.pt2"}

CONTENDERS: dict[str, Contender] = {
    item.name: item
    for item in (
        Contender("eager", "eager", way="eager", bytes_of=""),
        Contender("traced", "Dynamo alone, then eager", way="traced", bytes_of=""),
        Contender("plain-cold", "torch.compile, cold", leaves="plain"),
        Contender("plain-warm", "torch.compile, warm", needs="plain"),
        Contender(
            "cache-artifacts",
            "load_cache_artifacts",
            way="artifacts",
            needs="artifacts",
            fresh_cache=True,
            spec={"path": "artifacts.bin"},
            bytes_of="artifacts.bin",
        ),
        Contender(
            "caching-precompile",
            "caching_precompile, warm",
            needs="precompile",
            env={"TORCH_CACHING_PRECOMPILE": "1"},
        ),
        Contender("subprocess", "Inductor's SUBPROCESS mode, cold", env={MODE: "SUBPROCESS"}),
        Contender("async", "Inductor's ASYNC mode, cold", env={MODE: "ASYNC+SUBPROCESS"}),
        Contender(
            "aoti-cold",
            "AOTInductor, export and compile",
            way="aoti",
            leaves="aoti",
            spec={"path": "model.pt2"},
            **_AOTI,
        ),
        Contender("aoti-warm", "AOTInductor, load", way="aoti-load", needs="aoti", spec={"path": "model.pt2"}, **_AOTI),
        Contender(
            "ours-cold",
            "precompiled, cold",
            hook=True,
            daemon=True,
            leaves="ours",
            bytes_of="store/artifacts",
            state="pending",
            finally_source="swap",
            env=PACKAGES,
        ),
        Contender(
            "ours-pieces",
            "precompiled, cold, in pieces",
            hook=True,
            daemon=True,
            bytes_of="store/artifacts",
            state="pending",
            env=IN_PIECES,
            in_pieces=True,
        ),
        Contender(
            "ours-pieces-wait",
            "precompiled, cold, in pieces, waiting",
            hook=True,
            daemon=True,
            bytes_of="store/artifacts",
            state="pending",
            env={**IN_PIECES, "PRECOMPILED_MODE": "wait"},
            in_pieces=True,
        ),
        Contender(
            "ours-wait",
            "precompiled, cold, waiting",
            hook=True,
            daemon=True,
            bytes_of="store/artifacts",
            state="compiled",
            source="swap",
            finally_source="swap",
            env={"PRECOMPILED_MODE": "wait"},
        ),
        Contender(
            "ours-warm",
            "precompiled, warm, traced",
            hook=True,
            daemon=True,
            needs="ours",
            bytes_of="store/artifacts",
            state="compiled",
            source="hit",
            finally_source="hit",
        ),
        Contender(
            "ours-package",
            "precompiled, warm, with packages",
            hook=True,
            daemon=True,
            needs="ours",
            bytes_of="store/packages",
            state="compiled",
            source="package",
            finally_source="package",
            env=PACKAGES,
        ),
        Contender(
            "ours-down",
            "precompiled, cold, no daemon",
            hook=True,
            env={"PRECOMPILED_AUTOSTART": "0"},
            state="bypassed",
            source="inline",
            finally_source="inline",
        ),
    )
}

# Runs that fill the caches of a host for the contenders that need these caches.
FILLS: dict[str, Contender] = {
    "artifacts": Contender("fill", "", spec={"save": "artifacts.bin"}),
    "precompile": Contender("fill", "", spec={"save": "artifacts.bin"}, env={"TORCH_CACHING_PRECOMPILE": "1"}),
    **{item.leaves: item for item in CONTENDERS.values() if item.leaves},
}

# The goals use the figures of these contenders.
REPEATED = ("traced", "plain-cold", "plain-warm", "ours-cold", "ours-warm", "ours-package")


def chosen(text: str) -> list[str]:
    """Return the contenders that ``text`` lists ("ours,plain-warm"). "ours" stands for all "ours-..." contenders.

    Raises ValueError for an unknown name.
    """
    found = []
    for word in text.split(","):
        names = [name for name in CONTENDERS if name == word or name.startswith(f"{word}-")]
        if not names:
            raise ValueError(f"there is no contender {word!r}; there are {', '.join(CONTENDERS)}")
        found += [name for name in names if name not in found]
    return found
