"""With ``packages/dynamo``, the only place that touches private torch names; one file per concern.

Each file says which private names it uses and on which versions they were checked. When one is missing or behaves
otherwise, the graph at hand is bypassed with a reason; nothing here may make a user's program fail.
"""

from __future__ import annotations

# The ends of the supported range.
OLDEST = (2, 11)
NEWEST = (2, 15)


def version_tuple(version: str) -> tuple[int, int]:
    """``"2.13.0+cpu"`` to ``(2, 13)``."""
    major, minor = version.split(".")[:2]
    return int(major), int("".join(character for character in minor if character.isdigit()))


def supported(version: str) -> bool:
    return OLDEST <= version_tuple(version) <= NEWEST
