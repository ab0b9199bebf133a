"""Weights that Inductor puts into the code (``freezing``): a key has their content, and a job brings it along.

Dynamo leaves them on the module of its graph, and they become its last inputs
(torch_internals/client/graph_attributes.py). What is compiled holds for their values only, so that each is described
by a digest of its content. Behind a program that has such inputs, a job has their bytes, one after the other
(job.py).

That they still have this content is asked again where it matters: when they are sent, and before what was compiled
serves a call. A digest finds also what torch does not count as a change (``parameter.data.copy_(...)``).
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from precompiled.core.errors import Bypass, CompileFailed

Taken = TypeVar("Taken")


@dataclass(frozen=True)
class Weights:
    """The weights of a graph that are frozen, in the order of its inputs, as they were when it was captured."""

    tensors: tuple[torch.Tensor, ...]
    digests: tuple[str, ...]

    def unchanged(self) -> bool:
        return all(_digest(tensor) == digest for tensor, digest in zip(self.tensors, self.digests, strict=True))

    def data(self) -> bytes:
        """What a job brings along. Raises CompileFailed where one has another content by now."""
        parts = [_read(tensor, bytes) for tensor in self.tensors]
        if tuple(hashlib.sha256(part).hexdigest() for part in parts) != self.digests:
            raise CompileFailed("a weight was changed after its graph was captured", code="weights-changed")
        return b"".join(parts)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


def frozen(tensors: Sequence[torch.Tensor], described: Sequence[dict[str, Any]]) -> Weights:
    """These tensors as they are now; their descriptions get the digests. Raises Bypass for one that is not plain."""
    for tensor in tensors:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not _is_plain(tensor):
            raise Bypass("a weight to be frozen is no plain tensor", "Leave `freezing` off", code="freezing")
    digests = tuple(map(_digest, tensors))
    for item, digest in zip(described, digests, strict=True):
        item["content"] = digest
    return Weights(tuple(tensors), digests)


def tensors(described: Sequence[dict[str, Any]], data: bytes) -> list[torch.Tensor]:
    """In a worker: the weights of described inputs. Raises CompileFailed where these are not their bytes."""
    made = []
    at = 0
    for item in described:
        tensor = torch.empty_strided(item["shape"], item["stride"], dtype=getattr(torch, item["dtype"]))
        part = data[at : at + tensor.nbytes]
        ctypes.memmove(tensor.data_ptr(), part, len(part))
        if _digest(tensor) != item["content"]:
            raise CompileFailed("the graph does not decode: its weights are others", code="undecodable-graph")
        made.append(torch.nn.Parameter(tensor, item["requires_grad"]) if item["parameter"] else tensor)
        at += tensor.nbytes
    if at != len(data):
        raise CompileFailed(f"the graph does not decode: {len(data) - at} bytes too many", code="undecodable-graph")
    return made


def _digest(tensor: torch.Tensor) -> str:
    return _read(tensor, lambda content: hashlib.sha256(content).hexdigest())


def _read(tensor: torch.Tensor, take: Callable[[Any], Taken]) -> Taken:
    """What ``take`` makes of the bytes of a tensor, in the order of its memory; of b"" where they cannot be read."""
    # It stays for as long as it is read, whatever another thread makes of the tensor (weight.data = ...).
    storage = tensor.untyped_storage()
    start = tensor.storage_offset() * tensor.itemsize
    if not _is_plain(tensor) or start + tensor.nbytes > storage.nbytes():
        return take(b"")
    return take((ctypes.c_char * tensor.nbytes).from_address(storage.data_ptr() + start))


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it lies in memory of the CPU, such that each of its bytes is of one element."""
    return tensor.device.type == "cpu" and tensor.layout is torch.strided and _is_dense(tensor)


def _is_dense(tensor: torch.Tensor) -> bool:
    if tensor.numel() == 0:
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
