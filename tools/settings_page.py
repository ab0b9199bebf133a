#!/usr/bin/env python3
"""Make docs/reference/settings.md from precompiled/core/config.py: `PYTHON tools/settings_page.py`."""

from __future__ import annotations

import dataclasses
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "settings.md"
sys.path.insert(0, str(ROOT))

from precompiled.core import config  # noqa: E402 - needs the sys.path entry above
from precompiled.core.words import human_bytes, human_seconds  # noqa: E402

_HEAD = """# Settings

You can set a value in four places. The first place that has a value wins:

1. a flag of the command: `--set NAME=VALUE`, if the command's `--help` lists it;
2. an environment variable: `PRECOMPILED_` and the name in capitals;
3. your file, `~/.config/precompiled/config.toml`, which `precompiled config set NAME VALUE` changes;
4. the system's file, `/etc/precompiled.toml`.

`precompiled config` shows each value and its origin. A daemon keeps the settings that it was started with, so run
`precompiled daemon restart` after a change. `PRECOMPILED=0` in the environment switches the hook off for a process.

Below, the default follows each name in parentheses.
"""
_PARTS = {
    "mode": "What programs do",
    "cache_dir": "Where things are",
    "remote": "The remote",
    "farm": "The farm",
    "log": "Logs",
    "workers": "The daemon's budget",
    "failure_ttl_s": "What a store keeps",
}
_DEFAULTS = {  # computed at run time
    "cache_dir": "see below",
    "runtime_dir": "see below",
}
_PLACES = """
Unless a setting names a directory, files are in the first of these places that applies:

- store: `/var/cache/precompiled/<uid>`, if a system daemon runs; `$XDG_CACHE_HOME/precompiled`; `~/.cache/precompiled`
- socket, lock, log: `/run/precompiled`, if a system daemon runs; `$XDG_RUNTIME_DIR/precompiled`, if you own this
  directory and can write to it; `run/` in the default store
- settings, keys: `$XDG_CONFIG_HOME/precompiled`; `~/.config/precompiled`

If you cannot write to the default store, `run/` is in `cache_dir`. `~` means `$HOME`, or the home directory of your
account in `/etc/passwd`. If a variable is not an absolute path (`HOME=~`), precompiled treats it as unset.

A container with an arbitrary uid (Kubernetes `runAsUser`, OpenShift, `docker run --user`) often has no account, and
`HOME` is unset or `/`. Set `PRECOMPILED_CACHE_DIR` to a directory that the uid can write to. Otherwise, `torch.compile`
works without precompiled (`no-place`). The default is never in `/tmp`, because another user could create it first.
"""


def page() -> str:
    return "\n".join([_HEAD.rstrip("\n"), *_lines(), ""])


def _lines() -> Iterator[str]:
    defaults = {item.name: item.default for item in dataclasses.fields(config.Settings)}
    for name in config.NAMES:
        if name == "remote":
            yield _PLACES.rstrip("\n")
        if name in _PARTS:
            yield f"\n## {_PARTS[name]}\n"
        default = _DEFAULTS.get(name) or _shown(name, defaults[name])
        meaning = re.sub(r"\(docs/guides/([\w-]+\.md)\)", r"([\1](../guides/\1))", config.MEANINGS[name])
        text = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\xa0"), f"- `{name}` ({default}): {meaning}")
        yield textwrap.fill(text, 120, subsequent_indent="  ", break_on_hyphens=False).replace("\xa0", " ")


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
