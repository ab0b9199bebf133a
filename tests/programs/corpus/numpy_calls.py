"""Rows of the corpus about NumPy in compiled functions. Dynamo replaces NumPy by torch's own implementation."""

from __future__ import annotations

import numpy as np
import torch

from corpus.rows import Row, rand, row


@row
def numpy_functions() -> Row:
    def function(x: torch.Tensor) -> torch.Tensor:
        array = x.numpy()
        return torch.from_numpy(np.sin(array) + np.maximum(array, 0.5) * np.linalg.norm(array)) * 2

    return Row(function, [(rand(3, 4, grad=False),)])


@row
def numpy_methods_and_operators() -> Row:
    def function(x: torch.Tensor) -> torch.Tensor:
        array = x.numpy().reshape(-1)
        return torch.from_numpy(array[::2] ** 2 - array.mean() + array.T[0])

    return Row(function, [(rand(3, 4, grad=False),)])


@row
def numpy_arrays_as_arguments() -> Row:
    def function(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        result: np.ndarray = np.einsum("ij,jk->ik", a, b) + np.fft.fft(a).real.sum()
        return result

    return Row(function, [(np.ones((3, 4)), np.arange(8.0).reshape(4, 2))], run=lambda call, *args: [call(*args)])


@row
def check_is_size() -> Row:
    def function(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        size = count.item()
        torch._check_is_size(size)
        return torch.zeros(size) + x.sum()

    around = torch._dynamo.config.patch(capture_scalar_outputs=True)
    return Row(function, [(rand(3), torch.tensor(4))], around=lambda: around)
