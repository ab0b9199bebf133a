"""Handles frozen weights, which Inductor puts into the code.

Dynamo leaves the weights as attributes of the graph's module. This project turns them into the graph's last inputs
(torch_internals/client/graph_attributes.py). Compiled code is valid only for the weights' values, so the captured graph
has a digest of each weight's content. A job has the bytes of all weights, in order, after the program (job.py).

The client verifies the digests before it sends the weights, and before compiled code serves a call. Digests detect
changes that torch's version counters miss (``parameter.data.copy_(...)``).
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from precompiled.core.errors import Bypass, CompileFailed

if TYPE_CHECKING:
    from precompiled.core.program_data import InputData

Taken = TypeVar("Taken")


@dataclass(frozen=True)
class Weights:
    """The frozen weights of a graph, in the order of its inputs, with their digests at the capture."""

    tensors: tuple[torch.Tensor, ...]
    digests: tuple[str, ...]

    def unchanged(self) -> bool:
        return all(_digest(tensor) == digest for tensor, digest in zip(self.tensors, self.digests, strict=True))

    def data(self) -> bytes:
        """The data for a job. Raises CompileFailed if a weight has changed since the capture."""
        parts = [_read(tensor, bytes) for tensor in self.tensors]
        if tuple(hashlib.sha256(part).hexdigest() for part in parts) != self.digests:
            raise CompileFailed("a weight changed after the capture of its graph", code="weights-changed")
        return b"".join(parts)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


def capture_weights(tensors: Sequence[torch.Tensor], described: Sequence[InputData]) -> Weights:
    """Capture these tensors, and add their digests to ``described``. Raises Bypass for a tensor that is not plain."""
    for tensor in tensors:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not _is_plain(tensor):
            raise Bypass("a weight to be frozen is not a plain tensor", "Leave `freezing` off", code="freezing")
    digests = tuple(map(_digest, tensors))
    for item, digest in zip(described, digests, strict=True):
        item["content"] = digest
    return Weights(tuple(tensors), digests)


def tensors(described: Sequence[InputData], data: bytes) -> list[torch.Tensor]:
    """In a worker, rebuild the weights of described inputs. Raises CompileFailed if ``data`` does not match the
    digests.
    """
    made = []
    at = 0
    for item in described:
        tensor = torch.empty_strided(item["shape"], item["stride"], dtype=getattr(torch, item["dtype"]))
        part = data[at : at + tensor.nbytes]
        ctypes.memmove(tensor.data_ptr(), part, len(part))
        if _digest(tensor) != item["content"]:
            raise CompileFailed("the graph does not decode: its weights differ", code="undecodable-graph")
        made.append(torch.nn.Parameter(tensor, item["requires_grad"]) if item["parameter"] else tensor)
        at += tensor.nbytes
    if at != len(data):
        raise CompileFailed(f"the graph does not decode: {len(data) - at} bytes too many", code="undecodable-graph")
    return made


def _digest(tensor: torch.Tensor) -> str:
    return _read(tensor, lambda content: hashlib.sha256(content).hexdigest())


def _read(tensor: torch.Tensor, take: Callable[[Any], Taken]) -> Taken:
    """Return ``take(content)``: the content is the tensor's bytes in memory order, or b"" if they cannot be read."""
    # Keep the storage alive during the read: another thread may replace it (weight.data = ...).
    storage = tensor.untyped_storage()
    start = tensor.storage_offset() * tensor.itemsize
    if not _is_plain(tensor) or start + tensor.nbytes > storage.nbytes():
        return take(b"")
    return take((ctypes.c_char * tensor.nbytes).from_address(storage.data_ptr() + start))


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is in CPU memory, and each of its bytes belongs to one element."""
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
