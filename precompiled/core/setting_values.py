"""Parses the values of settings, from flags, environment variables and TOML files. Each parser raises ValueError.

Every process that imports torch runs this file, so it imports neither torch nor msgspec.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from precompiled.core import paths
from precompiled.version import OFF, ON

MODES = ("eager", "wait", "lookup", "off")
PACKAGES = ("program", "function", "off")
PROGRESS = ("terminal", "always", "off")
TIERS = ("default", "quick,default")
TRITON = ("on", "texts", "off")
MAX_BASES = 16
# Limits that must not be 0. A limit of 0 would not mean "no limit", but would remove or stop everything.
NOT_ZERO = ("cache_max_bytes", "cache_max_inodes", "job_timeout_s", "remote_timeout_s")


def parse_switch(value: object) -> bool:
    return value if isinstance(value, bool) else parse_boolean(str(value))


def parse_boolean(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ON:
        return True
    if lowered in OFF or not lowered:
        return False
    raise ValueError("expected 1 or 0")


def parse_mode(text: str) -> str:
    if text not in MODES:
        raise ValueError(f"expected one of {', '.join(MODES)}")
    return text


def parse_choice(choices: tuple[str, ...]) -> Callable[[object], str]:
    """Parse one of the choices; 1 means the first, and 0 the last."""

    def parse(value: object) -> str:
        text = str(value)
        if text in choices:
            return text
        try:
            return choices[0] if parse_boolean(text) else choices[-1]
        except ValueError:
            raise ValueError(f"expected one of {', '.join(choices)}, or 1 or 0") from None

    return parse


def parse_tiers(text: str) -> str:
    if (found := text.replace(" ", "")) not in TIERS:
        raise ValueError(f"expected one of {'; '.join(TIERS)}")
    return found


def parse_fraction(text: str) -> float:
    try:
        fraction = float({"always": "1", "never": "0"}.get(text.strip().lower(), text))
    except ValueError:
        fraction = -1
    if not 0 <= fraction <= 1:
        raise ValueError("expected a number from 0 to 1, always or never")
    return fraction


def parse_log(text: str) -> str:
    if text not in ("debug", "info", "warning", "error"):
        raise ValueError("expected debug, info, warning or error")
    return text


def parse_directory(text: str) -> Path:
    path = Path(text)
    if path.parts[:1] == ("~",):
        path = (paths.home() or path).joinpath(*path.parts[1:])
    elif text.startswith("~"):
        path = Path(os.path.expanduser(text))  # "~name": the home of another account
    if str(path).startswith("~"):
        raise ValueError(f"{path.parts[0]!r} has no home directory")
    if not path.is_absolute():
        raise ValueError("expected an absolute path")
    return path


def parse_directories(value: object) -> tuple[Path, ...]:
    given = value if isinstance(value, (list, tuple)) else str(value).split(os.pathsep)
    found = tuple(dict.fromkeys(parse_directory(str(item)) for item in given if str(item)))
    if len(found) > MAX_BASES:
        raise ValueError(f"expected at most {MAX_BASES} directories")
    return found


def parse_remote(value: object) -> str:
    text = "" if str(value) == "none" else str(value)  # "none" overrides a URL in a file
    if text and "://" not in text:
        raise ValueError("expected a URL, such as s3://bucket/prefix or file:///shared/precompiled")
    return text


def parse_farm(value: object) -> str:
    text = "" if str(value) == "none" else str(value)
    if text and text != "auto" and not text.startswith("ray://"):
        raise ValueError('expected "auto", ray://host:port, or none')
    return text


def parse_size(text: str) -> int:
    """Parse a number of bytes with or without a unit. 5GB is 5 * 10^9 bytes. 5GiB and 5G are 5 * 2^30 bytes."""
    number = text.strip().lower()
    binary = not number.endswith("b") or number.endswith("ib")
    number = number.removesuffix("b").removesuffix("i").rstrip()
    power = "kmgt".find(number[-1:]) + 1 if number else 0
    if power == 0:
        return int(text)
    return int(float(number[:-1]) * (1024 if binary else 1000) ** power)


def parse_positive(name: str, kind: type) -> Callable[[Any], Any]:
    ends = {"s": "a number of seconds"}
    ending = name.rpartition("_")[2]
    least = "above 0" if name in NOT_ZERO else "of 0 or more"
    what = f"{ends.get(ending, 'a number' if kind is float else 'a whole number')} {least}, without a unit"
    if ending == "bytes":
        what = f"a size {least}, such as 500000000, 500MB or 20GiB"
    if name.startswith("cache_max_"):
        what += "; `precompiled cache clear` empties the store"

    def parse(value: object) -> Any:
        try:
            number = parse_size(value) if ending == "bytes" and isinstance(value, str) else kind(value)
        except (ValueError, TypeError, OverflowError):
            number = -1
        if not 0 <= number < 1 << 62 or (number == 0 and name in NOT_ZERO):  # this condition is also true for NaN
            raise ValueError(f"expected {what}")
        return number

    return parse
