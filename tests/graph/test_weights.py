"""Tests of frozen weights: the key holds a digest of their content. The client sends the content with the job, and
checks later whether the weights have changed.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from support_graphs import captures
from torch._subclasses.fake_tensor import FakeTensorMode

from precompiled.core.errors import Bypass, CompileFailed
from precompiled.graph import capture, job, key, weights


def described(*tensors: torch.Tensor) -> list[dict[str, Any]]:
    return [
        {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()),
            "requires_grad": tensor.requires_grad,
            "parameter": isinstance(tensor, torch.nn.Parameter),
        }
        for tensor in tensors
    ]


TENSORS = {
    "matrix": torch.randn(4, 6),
    "transposed": torch.randn(4, 6).t(),
    "channels-last": torch.randn(2, 3, 5, 5).contiguous(memory_format=torch.channels_last),
    "part-of-another": torch.randn(4, 6)[1:3],
    "half": torch.randn(3, 5).bfloat16(),
    "integers": torch.arange(7),
    "scalar": torch.tensor(2.5),
    "empty": torch.empty(0, 3),
    "parameter": torch.nn.Parameter(torch.randn(3)),
}


@pytest.mark.parametrize("name", TENSORS)
def test_worker_gets_equal_tensors(name: str) -> None:
    tensors = (TENSORS[name], torch.randn(3))
    items = described(*tensors)
    found = weights.capture_weights(tensors, items)
    assert [item["content"] for item in items] == list(found.digests)
    made = weights.tensors(items, found.data())
    for left, right in zip(made, tensors, strict=True):
        assert (type(left), left.stride(), left.requires_grad) == (type(right), right.stride(), right.requires_grad)
        torch.testing.assert_close(left, right, rtol=0, atol=0)


def test_any_change_of_a_weight_is_detected() -> None:
    for change in (lambda weight: weight.data.mul_(2), lambda weight: weight.numpy().__imul__(2)):
        weight = torch.randn(4)
        found = weights.capture_weights([weight], described(weight))
        assert found.unchanged()
        change(weight)
        assert not found.unchanged()
        with pytest.raises(CompileFailed, match="changed"):
            found.data()


def test_freed_or_moved_memory_is_not_read() -> None:
    """The check for changed weights runs in a separate thread before a swap. A read of invalid memory in this thread
    would crash the program.
    """
    for change in (
        lambda weight: weight.untyped_storage().resize_(0),
        lambda weight: setattr(weight, "data", torch.empty(5)),
        lambda weight: setattr(weight, "data", torch.randn(8)[::2]),
    ):
        weight = torch.nn.Parameter(torch.randn(4))
        found = weights.capture_weights([weight], described(weight))
        change(weight)
        assert not found.unchanged()


def test_worker_refuses_other_bytes() -> None:
    weight = torch.randn(4)
    items = described(weight)
    data = weights.capture_weights([weight], items).data()
    for wrong in (data[:-1], data + b"x", bytes(len(data))):
        with pytest.raises(CompileFailed, match="does not decode"):
            weights.tensors(items, wrong)


def test_tensor_without_contiguous_memory_of_its_own_is_refused() -> None:
    with FakeTensorMode():
        fake = torch.nn.Linear(3, 3).weight
    for tensor in (torch.randn(3).expand(4, 3), torch.randn(4, 4)[:, ::2], torch.ones(3, device="meta"), fake):
        with pytest.raises(Bypass):
            weights.capture_weights([tensor], described(tensor))


def test_program_and_its_data_are_joined_and_split() -> None:
    (found,) = captures(lambda x: x * 2, torch.randn(3))
    program = found.program.to_bytes()
    for data in (b"", b"\0\1\0"):
        assert job.split(job.join_parts(program, data)) == (program, data)
    json.loads(program)


def test_key_depends_on_the_content_of_frozen_weights_only() -> None:
    def keys(frozen: bool) -> list[str]:
        found = []
        for value in (1.0, 1.0, 2.0):
            model = torch.nn.Linear(4, 4)
            torch.nn.init.constant_(model.weight, value)
            torch.nn.init.constant_(model.bias, 0.0)
            found.append(_key(model, frozen))
        return found

    one, same, other = keys(frozen=True)
    assert one == same != other
    assert len(set(keys(frozen=False))) == 1


def _key(model: torch.nn.Module, frozen: bool) -> str:
    found = []

    def backend(module: torch.fx.GraphModule, _: list[Any]) -> Any:
        from precompiled.torch_internals.client import graph_lowering

        plain = graph_lowering.plain(module)
        found.append(key.key(capture.capture(plain.module, {}, plain.held).sections))
        return module.forward

    torch._dynamo.reset()
    with torch._inductor.config.patch(freezing=frozen), torch.no_grad():
        torch.compile(model, backend=backend)(torch.randn(2, 4))
    return found[0]
