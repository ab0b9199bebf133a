"""Reads state of torch.distributed that a trace depends on and that has no guards (docs/explanation/packages.md).

Private names: torch.distributed._DEFAULT_FIRST_BUCKET_BYTES, torch.distributed.distributed_c10d._world.{pg_names,
pg_map, pg_group_ranks}, torch.nn.parallel.DistributedDataParallel._get_active_ddp_module,
torch.distributed.device_mesh.DeviceMesh._dim_group_names, torch.distributed.tensor._dtensor_spec.DTensorSpec,
torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState, torch._dynamo.config.skip_fsdp_hooks (2.11). Checked on
2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import hashlib
import re
import sys
import types
from typing import Any

import torch
import torch._dynamo.config

from precompiled.core.errors import Bypass
from precompiled.packages.describe import descriptions
from precompiled.packages.describe.errors import NotPortable
from precompiled.torch_internals.ranks import dtensor_state, dtensors

# Kinds of guards that only objects of torch.distributed have.
KINDS = frozenset({"FAKE_SCRIPT_TYPE_MATCH", "OPAQUE_OBJ_GUARD_FN_MATCH", "DTENSOR_SPEC_MATCH"})
# The attribute in which fully_shard and others keep their state on a module
# (torch/distributed/_composable/contract.py).
_STATE_KEY = re.compile(r"(?<=^__composable_api_state_key)_[0-9a-f-]{36}$")


def process_groups() -> str:
    """Describe this rank and all process groups. A trace treats ranks, sizes and names of groups as constants.

    While the forward of a DistributedDataParallel runs, include the module's bucket sizes, because Dynamo cuts the
    graph at the buckets.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return "none"
    from torch.distributed import distributed_c10d
    from torch.nn.parallel import DistributedDataParallel

    world = distributed_c10d._world
    groups = [
        (str(name), sorted(world.pg_group_ranks.get(group, {}).items())) for group, name in world.pg_names.items()
    ]
    backends = sorted({str(backend) for backend, _store in world.pg_map.values()})
    running = DistributedDataParallel._get_active_ddp_module()
    buckets = (running.bucket_bytes_cap, torch.distributed._DEFAULT_FIRST_BUCKET_BYTES) if running is not None else ()
    whole = repr((sorted(groups), backends, buckets))
    size = torch.distributed.get_world_size()
    return f"rank {torch.distributed.get_rank()} of {size}, {hashlib.sha256(whole.encode()).hexdigest()[:16]}"


def dtensors_state() -> str:
    """Describe the process-wide state that affects the compile of a graph with DTensors.

    A graph's key contains this state. A package reuses the key without a capture, so the state is a requirement.
    """
    if sys.modules.get("torch.distributed.tensor") is None:
        return "default"
    try:
        state = dtensor_state.read()
    except Bypass as reason:
        return str(reason)
    changed = {name: value for name, value in sorted(state.items()) if name != "handlers" and value}
    return repr(changed) if changed else "default"


def is_a_group(value: object) -> bool:
    return torch.distributed.is_available() and isinstance(value, torch.distributed.ProcessGroup)


def describe_distributed(value: Any) -> object:
    """Describe a group, a mesh, a placement or a DTensor's layout as plain data. None for other values.

    The description of a group is only its name, because an entry requires the group's ranks (``process_groups``).
    Raises NotPortable.
    """
    if is_a_group(value):
        return value.group_name
    meshes: object = sys.modules.get("torch.distributed.device_mesh")
    if hasattr(meshes, "DeviceMesh") and isinstance(value, meshes.DeviceMesh):
        place, names = value.get_coordinate(), value.mesh_dim_names
        groups = [str(name) for name in value._dim_group_names]
        return [value.device_type, value.mesh.tolist(), list(names or ()), groups, list(place or ())]
    if dtensors.is_placement(value):
        try:
            return dtensors.encode_placement(value)
        except Bypass as reason:
            raise NotPortable(str(reason)) from reason
    specs = sys.modules.get("torch.distributed.tensor._dtensor_spec")
    if specs is not None and isinstance(value, specs.DTensorSpec):
        meta = value.tensor_meta
        whole = [list(map(int, meta.shape)), list(map(int, meta.stride)), str(meta.dtype)] if meta is not None else None
        placements = [describe_distributed(placement) for placement in value.placements]
        return [describe_distributed(value.mesh), placements, whole, repr(getattr(value, "shard_order", None))]
    return None


descriptions.describe_distributed = describe_distributed


def is_of_fully_shard(hook: object) -> bool:
    """Whether a module's hook belongs to fully_shard. Dynamo does not trace such a hook, and reads none of its
    objects.
    """
    state = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_state")
    # Torch 2.13 does not have the setting skip_fsdp_hooks, and never traces these hooks.
    disabled = getattr(torch._dynamo.config, "skip_fsdp_hooks", True)
    return bool(state and disabled and isinstance(hook, types.MethodType) and type(hook.__self__) is state.FSDPState)


def without_key(name: str) -> str:
    """The name of a module's attribute, without the part that is random per process."""
    return _STATE_KEY.sub("", name)
