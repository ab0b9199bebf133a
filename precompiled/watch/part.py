"""Implements parts.WatchProtocol: the functions of watch mode that other code calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def record() -> None:
    from precompiled.watch import recorder

    recorder.begin()


def any_registered(cache_dir: Path) -> bool:
    from precompiled.service.watch import registry

    return registry.any_registered(cache_dir)


def show_watches(watches: list[dict[str, Any]]) -> None:
    from precompiled.watch import commands

    commands.show_watches(watches)
