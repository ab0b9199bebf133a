"""The ways to start a compiled model that are compared: what each needs, and what it must have done to count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness.hosts import PACKAGES
from benchmarks.models.suite import SHAPES, TASKS


@dataclass(frozen=True)
class Contender:
    """One of them. ``way``: how program.py compiles; ``env``: what is set for the process.

    ``leaves``: what its host is good for afterwards; ``needs``: what its host must have been left with.
    ``fresh_cache``: Inductor's cache is an empty one each time all the same. ``bytes_of``: where what it leaves lies on
    its host. ``state``, ``source``: what precompiled must report of every graph after the first call, and
    ``finally_source`` at the end: a sample of something else is no figure.
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
            "cache-artifacts", "load_cache_artifacts", way="artifacts", needs="artifacts", fresh_cache=True,
            spec={"path": "artifacts.bin"}, bytes_of="artifacts.bin",
        ),
        Contender(
            "caching-precompile", "caching_precompile, warm", needs="precompile", env={"TORCH_CACHING_PRECOMPILE": "1"},
        ),
        Contender("subprocess", "Inductor's SUBPROCESS mode, cold", env={MODE: "SUBPROCESS"}),
        Contender("async", "Inductor's ASYNC mode, cold", env={MODE: "ASYNC+SUBPROCESS"}),
        Contender("aoti-cold", "AOTInductor, export and compile", way="aoti", leaves="aoti",
                  spec={"path": "model.pt2"}, **_AOTI),
        Contender("aoti-warm", "AOTInductor, load", way="aoti-load", needs="aoti", spec={"path": "model.pt2"}, **_AOTI),
        Contender(
            "ours-cold", "precompiled, cold", hook=True, daemon=True, leaves="ours", bytes_of="store/artifacts",
            state="pending", finally_source="swap", env=PACKAGES,
        ),
        Contender(
            "ours-warm", "precompiled, warm, traced", hook=True, daemon=True, needs="ours", bytes_of="store/artifacts",
            state="compiled", source="hit", finally_source="hit",
        ),
        Contender(
            "ours-package", "precompiled, warm, with packages", hook=True, daemon=True, needs="ours",
            bytes_of="store/packages", state="compiled", source="package", finally_source="package", env=PACKAGES,
        ),
        Contender(
            "ours-down", "precompiled, cold, no daemon", hook=True, env={"PRECOMPILED_AUTOSTART": "0"},
            state="bypassed", source="inline", finally_source="inline",
        ),
    )
}  # fmt: skip

# What fills a host for those that need it, where it is no contender itself.
FILLS: dict[str, Contender] = {
    "artifacts": Contender("fill", "", spec={"save": "artifacts.bin"}),
    "precompile": Contender("fill", "", spec={"save": "artifacts.bin"}, env={"TORCH_CACHING_PRECOMPILE": "1"}),
    **{item.leaves: item for item in CONTENDERS.values() if item.leaves},
}

# The ones whose figures the goals are about.
REPEATED = ("traced", "plain-cold", "plain-warm", "ours-cold", "ours-warm", "ours-package")


def chosen(text: str) -> list[str]:
    """Contenders by their names or the first parts of them: "ours,plain-warm". Raises ValueError for an unknown one."""
    found = []
    for word in text.split(","):
        names = [name for name in CONTENDERS if name == word or name.startswith(f"{word}-")]
        if not names:
            raise ValueError(f"there is no contender {word!r}; there are {', '.join(CONTENDERS)}")
        found += [name for name in names if name not in found]
    return found
