"""Describes the device meshes of a graph's DTensors as plain data in a client, and creates substitutes in a worker.

The inputs of a graph can be meshes, or DTensors that contain meshes. After the trace, collectives name the groups of a
mesh, and this rank's coordinates in the mesh determine sizes and offsets of shards. So the key contains a mesh's shape,
the names of its dimensions, its groups by number (group_names.py), and this rank's coordinates. The key does not
contain the ranks themselves. In a worker, the ranks of a mesh are only labels, numbered in the order in which the
graph's meshes name them. The worker refuses compiled code that names a rank. An artifact contains no meshes: a running
graph gets the client's own meshes as inputs (docs/decisions/0040).

A worker has no rank, so its meshes return the coordinates that are in the key. Meshes of different compiles must not be
equal, because torch caches sharding decisions by mesh, and equality ignores the rank's coordinates.

This file creates a DeviceMesh with the arguments ``_init_backend=False`` and ``_rank=``.

Private names: torch.distributed.device_mesh.DeviceMesh.{_coordinate_on_dim, _dim_group_names, _flatten_mapping,
_get_root_mesh, _hash, _pg_registry, _rank, _thread_id},
torch.distributed.distributed_c10d._resolve_process_group,
torch._library.fake_class_registry.{FakeScriptObject, maybe_to_fake_obj},
torch._subclasses.fake_tensor.FakeTensorMode. Checked on 2.13.0, 2.15.0.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._library import fake_class_registry
from torch._subclasses.fake_tensor import FakeTensorMode

from precompiled.core.errors import Bypass, CompileFailed
from precompiled.torch_internals.ranks import rank_dependence

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from precompiled.core.program_data import InputsData

# Operators that take ranks as arguments, besides groups.
_TAKE_RANKS = ("broadcast", "isend", "irecv", "batch_p2p_ops")

# The private attributes of a mesh that this file uses.
_ASKED = ("_dim_group_names", "_rank", "_thread_id", "_get_root_mesh", "_coordinate_on_dim", "_pg_registry")

_numbers = itertools.count(1)


def is_mesh(value: object) -> bool:
    """Whether an input is a mesh, or a fake object for one."""
    if isinstance(value, fake_class_registry.FakeScriptObject):
        value = value.real_obj
    loaded = sys.modules.get("torch.distributed.device_mesh")
    return loaded is not None and isinstance(value, getattr(loaded, "DeviceMesh", ()))


class Meshes:
    """The meshes of one graph, in the order of its inputs."""

    def __init__(self) -> None:
        self.found: list[DeviceMesh] = []

    def number(self, value: Any) -> int:
        """Return the mesh's index, which equal meshes with equal groups share. Raises Bypass for unsupported meshes."""
        mesh = value.real_obj if isinstance(value, fake_class_registry.FakeScriptObject) else value
        for number, known in enumerate(self.found):
            if known is mesh or (known == mesh and known._dim_group_names == mesh._dim_group_names):
                return number
        _refuse(mesh)
        self.found.append(mesh)
        return len(self.found) - 1

    def groups(self) -> Iterator[str]:
        """The names of the meshes' groups."""
        for mesh in self.found:
            yield from mesh._dim_group_names

    def to_plain(self, groups: Mapping[str, str]) -> list[dict[str, object]]:
        """The meshes as plain data. ``groups`` maps each group to its name in the key."""
        labels: dict[int, int] = {}
        plain = []
        for mesh in self.found:
            ranks = mesh.mesh.flatten().tolist()
            plain.append(
                {
                    "device": mesh.device_type,
                    "shape": list(mesh.shape),
                    "names": list(mesh.mesh_dim_names) if mesh.mesh_dim_names else None,
                    "ranks": [labels.setdefault(rank, len(labels)) for rank in ranks],
                    "rank": labels[mesh._rank],
                    "groups": [groups[name] for name in mesh._dim_group_names],
                }
            )
        return plain


def _refuse(mesh: DeviceMesh) -> None:
    why = ""
    if not all(hasattr(mesh, name) for name in _ASKED):  # also true if no groups were created for it
        why = "lacks attributes that torch 2.13 and 2.15 set"
    elif mesh.get_coordinate() is None:
        why = "does not have this rank"
    elif len(mesh._dim_group_names) != len(mesh.shape):
        why = "has dimensions without groups"
    elif mesh._thread_id is not None:
        why = "belongs to one thread"
    elif any(mesh.get_local_rank(dim) != place for dim, place in enumerate(mesh.get_coordinate())):
        why = "orders its ranks differently from their groups"
    elif len(mesh.shape) > 1 and mesh._get_root_mesh()._flatten_mapping:
        why = "has flattened dimensions"  # collectives may use the groups of these dimensions
    if why:
        raise Bypass(f"a mesh of the graph {why}", code="mesh")


def create_meshes(inputs: InputsData, asked: rank_dependence.RankReads) -> list[DeviceMesh]:
    """In a worker, create the meshes that ``inputs`` describes, from the worker's substitutes for the meshes' groups.

    ``asked`` records reads of this rank's coordinates in the meshes.
    """
    if not (described := inputs.get("meshes")):
        return []
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.distributed_c10d import _resolve_process_group

    compile_number = next(_numbers)
    meshes = []
    for plain in described:
        ranks = torch.tensor(plain["ranks"], dtype=torch.int).reshape(plain["shape"])
        names = plain["names"] and tuple(plain["names"])
        mesh = DeviceMesh(plain["device"], ranks, mesh_dim_names=names, _init_backend=False, _rank=plain["rank"])
        mesh._dim_group_names = list(plain["groups"])
        mesh._pg_registry = {name: _resolve_process_group(name) for name in plain["groups"]}
        mesh._thread_id = compile_number
        mesh._stays = threading.Lock()  # makes the mesh impossible to pickle
        mesh._hash = None
        rank_dependence.hide(mesh, asked)
        meshes.append(mesh)
    return meshes


def as_input(mesh: DeviceMesh, mode: FakeTensorMode) -> object:
    """A mesh in the form that Dynamo passes to a backend."""
    return fake_class_registry.maybe_to_fake_obj(mode, mesh)


def refuse_ranks(meshes: Sequence[object], code: str) -> None:
    """Raises CompileFailed if a graph has meshes and its code names ranks, because a worker's ranks are only labels."""
    for name in _TAKE_RANKS if meshes else ():
        if f"_c10d_functional.{name}" in code:
            raise CompileFailed(f"the compiled code of DTensors calls {name} with ranks", code="rank-dependent")
