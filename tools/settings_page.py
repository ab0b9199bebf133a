#!/usr/bin/env python3
"""Make docs/settings.md anew from precompiled/core/config.py: `PYTHON tools/settings_page.py`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "settings.md"
sys.path.insert(0, str(ROOT))

from precompiled.core import config  # noqa: E402 - below the path
from precompiled.core.words import human_bytes, human_seconds  # noqa: E402

_HEAD = """# Settings

Each has an environment variable, `PRECOMPILED_` and its name in capitals, and a line in
`~/.config/precompiled/config.toml` (`$XDG_CONFIG_HOME`) or `/etc/precompiled.toml`; commands take `--set NAME=VALUE`.
Flags count over variables, these over the user's file, this over the system's. A client reads its own; the daemon those
that it was started with (`precompiled restart` after a change). `precompiled config` shows each with its value and
where that came from, `precompiled config NAME` what it does.

What only reads variables: `PRECOMPILED=0` switches the hook off for a process ([switching-on.md](switching-on.md)).
"""
_PARTS = {
    "mode": "What programs do", "cache_dir": "Where things are", "remote": "The remote", "farm": "The farm",
    "log": "Logs", "workers": "The daemon's budget", "failure_ttl_s": "What a store keeps",
}  # fmt: skip
_DEFAULTS = {  # that are found out where they are needed
    "cache_dir": "`~/.cache/precompiled` (`$XDG_CACHE_HOME`); of the system's daemon `/var/cache/precompiled`",
    "runtime_dir": "`$XDG_RUNTIME_DIR/precompiled`, else `~/.cache/precompiled/run`; of the system's daemon "
                   "`/run/precompiled`",
}  # fmt: skip


def page() -> str:
    return "\n".join([_HEAD.rstrip("\n"), *_lines(), ""])


def _lines() -> Iterator[str]:
    defaults = {item.name: item.default for item in dataclasses.fields(config.Settings)}
    for name in config.NAMES:
        if name in _PARTS:
            yield f"\n## {_PARTS[name]}\n\n| setting | without it | what it is |\n|---|---|---|"
        default = _DEFAULTS.get(name) or _shown(name, defaults[name])
        yield f"| `{name}` | {default} | {config.MEANINGS[name]} |"


def _shown(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if value is None or value in ("", ()):
        return "none"
    if name.endswith("_bytes") and isinstance(value, int) and value:
        return human_bytes(value)
    if name.endswith("_s") and isinstance(value, float) and value:
        return human_seconds(value) if value >= 120 else f"{value:g} s"
    return f"`{value}`" if isinstance(value, str) else f"{value:,g}"


if __name__ == "__main__":
    PAGE.write_text(page())
