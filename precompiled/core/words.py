"""Formats texts for all output: numbers with units, singular and plural, lists.

At module level, this file imports only collections.abc, because clients use it, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

# An error suggests a known name if its similarity to the wrong name is at least this value (difflib's ratio).
MIN_SIMILARITY = 0.72


def closest(name: str, known: Iterable[str]) -> str:
    """The known name that is most similar to a wrong name; "" if no known name is similar enough."""
    from difflib import get_close_matches  # only errors need this import

    return next(iter(get_close_matches(name, list(known), 1, MIN_SIMILARITY)), "")


def format_count(count: int, one: str, many: str = "", *, zero: str = "0") -> str:
    """``1 artifact``, ``2 artifacts``, ``0 artifacts``.

    ``many``: the plural, if it is not ``one`` with an s at the end (``format_count(2, "graph that failed", "graphs that
    failed")``). ``zero``: the word for 0, such as "no".
    """
    number = f"{count:,}" if abs(count) >= 10_000 else str(count)
    return f"{number if count else zero} {one if count == 1 else many or one + 's'}"


def format_list(parts: Sequence[str], last: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return f" {last} ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def install(extra: str) -> str:
    """The command that installs the optional dependencies ``extra`` of pyproject.toml. No package index has this
    project, so the command names a clone.
    """
    return (
        f"`pip install '.[{extra}]'` in a clone of precompiled (`'torch-precompiled[{extra}]'` where an index has it)"
    )


def sentence(text: str) -> str:
    """``text`` with a full stop at its end."""
    return text if text.endswith((".", "!", "?", ":")) else text + "."


def human_bytes(count: float) -> str:
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if round(count, 1) < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TiB"


def human_seconds(seconds: float, *, whole: bool = False) -> str:
    """``0.3 s``, ``59.9 s``, ``1.5 min``, ``12 min``, ``3 h``, ``2 d``; ``12 ms`` below a tenth of a second.

    ``whole``: show only whole minutes, hours and days, for a narrow column.
    """
    if 0 < seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.0005 else "under 1 ms"
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    for unit, size, most in (("min", 60, 60), ("h", 3600, 48)):
        if round(seconds / size) < most:
            return f"{_figures(seconds / size, whole)} {unit}"
    return f"{_figures(seconds / 86400, whole)} d"


def _figures(number: float, whole: bool) -> str:
    return f"{number:.0f}" if whole or number >= 9.95 else f"{number:.1f}".removesuffix(".0")


AFTER_SWAP = {
    "timed": "to compare their times with compiled calls",
    "sizes": "because no artifact fits their sizes",
    "capture": "because compiled code must not run for the first time in a CUDA graph capture",
}


def describe_after_swap(calls: Mapping[str, int]) -> str:
    """Say how many eager calls came after the swap. ``calls``: their number for each reason, a key of AFTER_SWAP."""
    parts = [(number, AFTER_SWAP.get(why, why)) for why, number in calls.items() if number]
    came = f"{format_count(sum(number for number, _ in parts), 'eager call')} came after the swap"
    if len(parts) > 1:
        return f"{came}: {format_list([f'{number} {why}' for number, why in parts])}"
    return f"{came}, {parts[0][1]}" if parts else ""


def describe_saved(seconds: float) -> str:
    """Say how many compile seconds were saved compared with empty caches."""
    return f"{human_seconds(seconds)} (compared with empty caches)"
