"""Detects whether a compile depends on this rank's coordinates in its meshes.

DTensor reads a rank's coordinates from the mesh to cut out a shard, to mask rows of other shards, or to pad. If all
shards have equal sizes, the result rarely depends on the coordinates: with tensor parallelism, a block of a model
compiles to the same code on each rank.

In a worker, the substitute for a mesh stores the rank's coordinates in an object that records reads. A compile in a
worker can learn the rank in no other way. So if no read is recorded, the result is valid for all coordinates. Torch's
computation of a shard's size reads the coordinates, but often returns the same size for all coordinates. So this file
repeats the computation for all coordinates. If the sizes differ, the call counts as a read. If only the offsets differ,
a later read of the offset counts as a read of the coordinates.

The coordinates must not be a tuple, because C++ code reads a tuple directly, and such a read is not recorded.

Private names: torch.distributed.device_mesh.DeviceMesh.{_coordinate_on_dim, _get_mesh_dim_by_name, _rank},
torch.distributed.tensor._utils._compute_local_shape_and_global_offset. Checked on 2.13.0, 2.15.0.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from precompiled.torch_internals.patches import Patches

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class RankReads:
    """Records whether this compile has read a rank's coordinates. ``on_first_read`` is called at the first read."""

    def __init__(self, on_first_read: Callable[[], None]) -> None:
        self._on_first_read = on_first_read
        self.yes = False

    def note(self) -> None:
        if not self.yes:
            self.yes = True
            self._on_first_read()


class MeshPlace:
    """A rank's coordinates in a mesh: one number for each dimension."""

    def __init__(self, numbers: tuple[int, ...], asked: RankReads) -> None:
        self._numbers, self._asked = numbers, asked

    def _looked_at(self) -> tuple[int, ...]:
        self._asked.note()
        return self._numbers

    def __len__(self) -> int:
        return len(self._numbers)  # the length is equal on all ranks, so this read is not recorded

    def __getitem__(self, dim: Any) -> Any:
        return self._looked_at()[dim]

    def __iter__(self) -> Iterator[int]:
        return iter(self._looked_at())

    def __eq__(self, other: object) -> bool:
        return self._looked_at() == (other._looked_at() if isinstance(other, MeshPlace) else other)

    def __hash__(self) -> int:
        return hash(self._looked_at())

    def __repr__(self) -> str:
        return repr(self._looked_at())

    def __reduce__(self) -> NoReturn:
        raise TypeError("a place is for one compile")


class _Offsets:
    """The start of a rank's shard.

    Starts differ between ranks, so a read of a start counts as a read of the coordinates.
    """

    def __init__(self, offsets: Sequence[object], asked: RankReads) -> None:
        self._offsets, self._asked = offsets, asked

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, dim: Any) -> Any:
        self._asked.note()
        return self._offsets[dim]

    def __iter__(self) -> Iterator[object]:
        self._asked.note()
        return iter(self._offsets)


def hide(mesh: DeviceMesh, asked: RankReads) -> None:
    """Make a mesh record reads of this rank's coordinates."""
    mesh._coordinate_on_dim = MeshPlace(tuple(mesh._coordinate_on_dim), asked)
    del mesh._rank  # no known code reads it; a read fails


@contextmanager
def answering(asked: RankReads) -> Iterator[None]:
    """In a worker, let meshes return this rank's coordinates although no group of all ranks exists."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import _utils

    def get_local_rank(mesh: DeviceMesh, mesh_dim: int | str | None = None) -> int:
        if mesh_dim is None and len(mesh.shape) > 1:
            raise RuntimeError("Optional kwarg `mesh_dim` needs to be specified when device_mesh.ndim > 1.")
        dim = mesh._get_mesh_dim_by_name(mesh_dim) if isinstance(mesh_dim, str) else mesh_dim or 0
        place: int = mesh._coordinate_on_dim[dim]
        return place

    def shape_and_offset(
        shape: Any, mesh_shape: Any, place: object, placements: object, skip_offset: bool = False
    ) -> object:
        mesh = getattr(place, "__self__", None)  # ``place`` is a method of the mesh
        if not isinstance(mesh, DeviceMesh) or any(type(size) is not int for size in shape):
            return torchs_shape(shape, mesh_shape, place, placements, skip_offset)
        answers = [
            torchs_shape(shape, mesh_shape, numbers.__getitem__, placements, skip_offset)
            for numbers in itertools.product(*map(range, mesh_shape))
        ]
        if any(local != answers[0][0] for local, _ in answers):
            return torchs_shape(shape, mesh_shape, place, placements, skip_offset)
        if all(offset == answers[0][1] for _, offset in answers):
            return answers[0]
        before, asked.yes = asked.yes, True  # do not record this call, because reads of its result are recorded
        try:
            _, offset = torchs_shape(shape, mesh_shape, place, placements, skip_offset)
        finally:
            asked.yes = before
        return answers[0][0], _Offsets(offset, asked)

    torchs_shape = _utils._compute_local_shape_and_global_offset
    with Patches() as patches:
        patches.replace(DeviceMesh, "get_local_rank", lambda _: get_local_rank)
        patches.replace(_utils, "_compute_local_shape_and_global_offset", lambda _: shape_and_offset)
        yield
