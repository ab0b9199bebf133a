"""Compares the results of compiled code with eager's. All benchmarks use these tolerances."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from benchmarks.models.zoo import Example

# Torch's own tests of Inductor use similar tolerances (test_torchinductor.py: atol 1e-4, rtol 1e-4 and up).
RTOL, ATOL = 1e-3, 1e-4
# Small models have gradients far below ATOL, so zeros would pass. Therefore an element's error must also stay below
# this fraction of its tensor's largest element. Some gradients are zero except for rounding (the bias of an attention's
# keys), so errors below this fraction of the largest gradient do not count.
OF_ITS_TENSOR, OF_LARGEST_GRADIENT = 1e-2, 1e-6
# Gradients of models of real size are sums of many terms, so single elements have large errors. For such models, the
# norm of a tensor's error is limited to OF_ITS_NORM times a reference norm. The reference is the tensor's norm or
# OF_LARGEST_NORM times the largest gradient's norm, whichever is larger.
OF_ITS_NORM, OF_LARGEST_NORM = 5e-2, 1e-2

# The fraction for results after several steps of training: the weights accumulate the rounding errors of all steps.
OF_LARGEST_AFTER_STEPS = 1e-5

Tensors = Mapping[str, torch.Tensor | None]


def step(function: Callable[..., Any], example: Example, training: bool) -> Tensors:
    """Run one step and return its outputs. When training, also return all gradients and buffers, by name. Restores the
    model.

    ``function``: the example's model, or its compiled form.
    """
    model = example.model
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.set_grad_enabled(training):
        output = function(**example.inputs, **(example.targets if training else {}))
    found = {f"output{name}": tensor.detach() for name, tensor in _tensors(output)}
    if training:
        # The loss includes each part of the model. Other outputs are compared, but not differentiated.
        output["loss"].backward()
        found |= {f"gradient of {name}": parameter.grad for name, parameter in model.named_parameters()}
        found |= {f"buffer {name}": buffer.clone() for name, buffer in model.named_buffers()}
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(kept[name])
    return found


def _tensors(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in a model's result, key-value caches included."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, f"{name}.{key}")
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from _tensors(item, f"{name}[{position}]")
    elif value is not None and type(value).__module__.startswith("transformers."):
        yield from _tensors(vars(value), name)


def differences(got: Tensors, expected: Tensors, *, of_largest: float = OF_LARGEST_GRADIENT) -> list[str]:
    """Return one line for each tensor that differs. Tensors whose names begin with "gradient" set the noise level.

    ``of_largest``: the fraction of the largest gradient that counts as noise.
    """
    gradients = [_largest(tensor) for name, tensor in expected.items() if name.startswith("gradient")]
    noise = of_largest * max(gradients, default=0.0)

    def off(name: str, left: torch.Tensor, right: torch.Tensor) -> str:
        try:
            atol = min(ATOL, max(noise, OF_ITS_TENSOR * _largest(right)))
            torch.testing.assert_close(left, right, rtol=RTOL, atol=atol)
        except AssertionError as error:
            return f"{name}: {' '.join(str(error).split())}"
        return ""

    return _compared(got, expected, off)


def compare_steps(got: Sequence[Tensors], expected: Sequence[Tensors], *, half: bool = False) -> list[str]:
    """Return the differences of each step. ``half``: compare norms of whole tensors, as half precision needs."""
    found = [] if len(got) == len(expected) else [f"{len(got)} steps, not {len(expected)}"]
    for number, (left, right) in enumerate(zip(got, expected, strict=False)):
        off = unlike(left, right) if half else differences(left, right, of_largest=OF_LARGEST_AFTER_STEPS)
        found += [f"step {number}: {text}" for text in off]
    return found


def of_other_kind(got: Tensors, expected: Tensors) -> list[str]:
    """Compare only shape, dtype and device, for results whose values mean nothing. Strides are not compared."""

    def off(name: str, left: torch.Tensor, right: torch.Tensor) -> str:
        found, wanted = ((one.shape, one.dtype, one.device) for one in (left, right))
        return "" if found == wanted else f"{name}: {found}, and not {wanted}"

    return _compared(got, expected, off)


def unlike(got: Tensors, expected: Tensors) -> list[str]:
    """Compare norms of whole tensors, for models of real size."""
    norms = {name: float(tensor.double().norm()) for name, tensor in expected.items() if tensor is not None}
    floor = OF_LARGEST_NORM * max((norm for name, norm in norms.items() if name.startswith("gradient")), default=0.0)

    def off(name: str, left: torch.Tensor, right: torch.Tensor) -> str:
        by = float((left.double() - right.double()).norm())
        if by <= OF_ITS_NORM * max(norms[name], floor):  # false for NaN, which then counts as a difference
            return ""
        return f"{name}: off by {by:.3g}, its norm is {norms[name]:.3g}"

    return _compared(got, expected, off)


def _compared(got: Tensors, expected: Tensors, off: Callable[[str, torch.Tensor, torch.Tensor], str]) -> list[str]:
    """Return a line per difference. For a tensor in both dicts, ``off`` returns the error, or ""."""
    found = [f"{name} is there once only" for name in sorted(got.keys() ^ expected.keys())]
    for name in expected.keys() & got.keys():
        left, right = got[name], expected[name]
        if left is None or right is None:
            text = f"{name} is None once only" if left is not right else ""
        else:
            text = off(name, left, right)
        if text:
            found.append(text)
    return found


def _largest(tensor: torch.Tensor | None) -> float:
    return float(tensor.abs().max()) if tensor is not None and tensor.numel() else 0.0
