"""Rows of the corpus about the state around a graph, and about process groups."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from corpus.rows import ROWS, Row, linear, rand, row


# ---------------------------------------------------------------- the state around a graph
def with_state(name: str, around: Callable[[], Any], function: Any = None, calls: Any = None, **more: Any) -> None:
    def make() -> Row:
        return Row(function or linear(16, 32, 16), calls or [(rand(8, 16),)], around=around, **more)

    ROWS[name] = make


@contextlib.contextmanager
def setting(get: Callable[[], Any], set_: Callable[[Any], Any], value: Any) -> Iterator[None]:
    before = get()
    set_(value)
    try:
        yield
    finally:
        set_(before)


with_state("plain_training", contextlib.nullcontext)


def autocasts(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu"):
        return x @ x.t()


with_state("no_grad", torch.no_grad)
with_state("inference_mode", torch.inference_mode, calls=[(torch.randn(8, 16),)])
with_state("autocast", lambda: torch.autocast("cpu", dtype=torch.bfloat16), rtol=2e-2, atol=2e-2)
with_state("autocast_half", lambda: torch.autocast("cpu", dtype=torch.float16), rtol=2e-2, atol=2e-2)
with_state(
    "autocast_of_another_dtype",  # Dynamo's graph does not show this dtype, AOTAutograd's does
    lambda: setting(
        functools.partial(torch.get_autocast_dtype, "cpu"),
        functools.partial(torch.set_autocast_dtype, "cpu"),
        torch.float16,
    ),
    autocasts,
    rtol=2e-2,
    atol=2e-2,
)
with_state(
    "deterministic",
    lambda: setting(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
)
with_state(
    "default_dtype",
    lambda: setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    lambda x: x + torch.ones(16).sum().to(x.dtype) + torch.arange(16.0).dtype.itemsize,
)
with_state("default_device", lambda: torch.device("cpu"))
with_state(
    "matmul_precision",
    lambda: setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"),
    rtol=2e-2,
    atol=2e-2,
)
with_state("one_thread", lambda: setting(torch.get_num_threads, torch.set_num_threads, 1))
with_state("inductor_configuration", lambda: torch._inductor.config.patch(epilogue_fusion=False, max_fusion_size=2))
with_state("functorch_configuration", lambda: torch._functorch.config.patch(treat_parameters_as_free_to_save=False))
with_state("options", contextlib.nullcontext, compile={"options": {"epilogue_fusion": False}})
with_state("max_autotune", contextlib.nullcontext, compile={"mode": "max-autotune-no-cudagraphs"})
with_state("fullgraph", contextlib.nullcontext, compile={"fullgraph": True})
for _backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
    with_state(
        f"attention_{_backend.name.lower()}",
        functools.partial(sdpa_kernel, [_backend]),
        F.scaled_dot_product_attention,
        [tuple(torch.randn(2, 2, 32, 16, requires_grad=True) for _ in range(3))],
    )


@row
def autocast_inside() -> Row:
    model = linear(16, 16)

    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x).float()

    return Row(function, [(rand(8, 16),)], rtol=2e-2, atol=2e-2)


# ---------------------------------------------------------------- process groups
def _alone() -> Any:
    """Initialises torch.distributed with a group whose only rank is this process."""
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    return dist


@row
def collective() -> Row:
    import torch.distributed._functional_collectives as collectives

    group = _alone().group.WORLD
    return Row(lambda x: collectives.all_reduce(x.sin(), "sum", group) * 2, [(rand(8, grad=False),)])


@row
def distributed_tensor() -> Row:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    _alone()
    mesh = init_device_mesh("cpu", (1,))

    def run(function: Callable[..., Any], x: torch.Tensor) -> list[Any]:
        return [function(distribute_tensor(x.clone(), mesh, [Replicate()])).to_local()]

    return Row(lambda x: (x * 2).sin(), [(rand(8, grad=False),)], run=run)
