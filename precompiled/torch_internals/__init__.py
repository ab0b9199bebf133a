"""Holds the code that uses private names of torch, one file per concern.

``packages/dynamo`` is the only other folder that uses private names.

Each file lists the private names that it uses and the versions on which they were checked. If a name is missing or
behaves differently, the graph is bypassed with a reason. No function of these files may make a user's program fail.

- ``graph``: a graph as plain data, encoded in the client and decoded in the worker
- ``user_code``: the user's own code that a compile depends on
- ``ranks``: process groups, meshes and DTensors
- ``inductor``: parts of Inductor that client and worker share
- ``eager``: the eager run of a graph until its artifact is ready
- ``client``, ``worker``: code for clients only, code for workers only
"""

from __future__ import annotations

# The oldest and the newest supported version of torch.
OLDEST = (2, 11)
NEWEST = (2, 15)


def version_tuple(version: str) -> tuple[int, int]:
    """Convert ``"2.13.0+cpu"`` to ``(2, 13)``."""
    major, minor = version.split(".")[:2]
    return int(major), int("".join(character for character in minor if character.isdigit()))


def is_supported(version: str) -> bool:
    return OLDEST <= version_tuple(version) <= NEWEST
