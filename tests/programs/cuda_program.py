"""Small programs with typical uses of CUDA, such as streams and captures, around the swap of a graph.

Usage: cuda_program.py WAY. WAY is the name of a function of this file. Prints a line of JSON, and ``@event`` lines for
the test.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
import triton
import triton.language as tl

import precompiled


def waved(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin() + x.cos()


def report(**more: Any) -> dict[str, Any]:
    return {"reports": [vars(graph) for graph in precompiled.report()], **more}


def captured(call: Any, meanwhile: Any = lambda: None) -> torch.cuda.CUDAGraph:
    """Capture two calls of ``call`` in a CUDA graph. During the capture, ``meanwhile`` runs between the two calls."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
        meanwhile()
        call()
    return graph


def check(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare values. Does nothing on a made-up device, because compiled kernels do not run there."""
    if not os.environ.get("CUDA_MADE_UP"):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def capture() -> dict[str, Any]:
    """The artifact arrives during a capture. After the next call, a second capture uses the compiled code."""
    compiled, x = torch.compile(waved), torch.randn(4096, device="cuda")
    compiled(x)  # traces the function and submits the graph
    waited, found = [], []
    captured(lambda: found.append(compiled(x)), lambda: waited.append(precompiled.wait(300))).replay()
    in_capture = vars(precompiled.report()[0]).copy()
    check(found[-1], waved(x))
    compiled(x)
    graph = captured(lambda: found.append(compiled(x)))
    x.normal_()
    graph.replay()
    check(found[-1], waved(x))
    return report(waited=waited, in_capture=in_capture)


def compile_in_capture() -> dict[str, Any]:
    """A worker refuses the graph while the program captures a CUDA graph. The client must compile the graph in process,
    but only after the end of the capture.
    """

    def fused(x: torch.Tensor) -> torch.Tensor:
        return (x.sin().sum(-1, keepdim=True) * x).cos()

    # benchmark_fusion needs measured times. On a made-up device nothing can be measured, so the worker refuses the
    # graph.
    compiled, x = torch.compile(fused, options={"benchmark_fusion": True}), torch.randn(4096, 64, device="cuda")
    compiled(x)
    precompiled.wait(300)
    captured(lambda: compiled(x)).replay()
    in_capture = torch._dynamo.utils.counters["aot_autograd"]["total"]
    compiled(x)
    return report(in_capture=in_capture, compiles=torch._dynamo.utils.counters["aot_autograd"]["total"])


def stream() -> dict[str, Any]:
    """All calls run on a stream that the program has created."""
    compiled, x = torch.compile(waved), torch.randn(4096, device="cuda")
    own = torch.cuda.Stream()
    with torch.cuda.stream(own):
        compiled(x)
        precompiled.wait(300)
        check(compiled(x), waved(x))
    return report(stream=own.cuda_stream)


def snapshot() -> dict[str, Any]:
    """The program records the allocator's history, from before the first call until after the swap."""
    torch.cuda.memory._record_memory_history()
    compiled, x = torch.compile(waved), torch.randn(4096, device="cuda")
    compiled(x)
    precompiled.wait(300)
    found = compiled(x)
    segments = torch.cuda.memory._snapshot()["segments"]
    allocated = {block["address"] for segment in segments for block in segment["blocks"]}
    return report(known=found.data_ptr() in allocated)


def sanitized() -> dict[str, Any]:
    """The program runs a forward and a backward of a model, with kernels from artifacts and from cuBLAS."""
    net = torch.nn.Sequential(torch.nn.Linear(65, 131), torch.nn.GELU(), torch.nn.LayerNorm(131)).cuda()
    compiled, x = torch.compile(net), torch.randn(32, 65, device="cuda", requires_grad=True)
    for _ in range(2):
        compiled(x).square().sum().backward()
        precompiled.wait(300)
    torch.cuda.synchronize()
    return report()


def full() -> dict[str, Any]:
    """The program holds nearly all memory of the GPU while a worker compiles its graph.

    The worker needs memory to measure products of large matrices. For a made-up GPU, the worker does not measure. It
    needs memory to fold a constant instead.
    """

    def product(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).relu()

    def masked(x: torch.Tensor) -> torch.Tensor:
        return (x + torch.full((256, 256), 2.0, device=x.device).triu() * torch.ones(256, 256, device=x.device)).relu()

    made_up = bool(os.environ.get("CUDA_MADE_UP"))
    function, size, left = (masked, 256, 1 << 20) if made_up else (product, 8192, 1 << 30)
    compiled, x = torch.compile(function, mode="max-autotune-no-cudagraphs"), torch.randn(size, size, device="cuda")
    function(x)  # the allocator keeps the memory of this call for later calls
    hog = [torch.empty(torch.cuda.mem_get_info()[0] - left, dtype=torch.uint8, device="cuda")]
    compiled(x)
    precompiled.wait(300)
    first = report()["reports"]
    hog.clear()
    torch.cuda.empty_cache()
    check(compiled(x), function(x))
    return report(first=first)


@triton.jit
def scaled(x, out, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=i < n) * 3, mask=i < n)


@triton.autotune(configs=[triton.Config({"B": 32}), triton.Config({"B": 64}, num_warps=2)], key=["n"])
@triton.jit
def tuned(x, out, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=i < n) * 5, mask=i < n)


def inside() -> Any:
    @triton.jit
    def inner(x, out, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
        i = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(out + i, tl.load(x + i, mask=i < n) * 7, mask=i < n)

    return inner


def with_a_closure() -> Any:
    times = tl.constexpr(7)

    @triton.jit
    def closed(x, out, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
        i = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(out + i, tl.load(x + i, mask=i < n) * times, mask=i < n)

    return closed


def kernels(inner: Any = None) -> dict[str, Any]:
    """The program launches Triton kernels of its own: one at module level, an autotuned one, and one in a function."""
    inner = inner or inside()

    def launched(x: torch.Tensor) -> torch.Tensor:
        once, twice, out = (torch.empty_like(x) for _ in range(3))
        grid = (triton.cdiv(x.numel(), 64),)
        scaled[grid](x, once, x.numel(), B=64)
        tuned[lambda meta: (triton.cdiv(x.numel(), meta["B"]),)](once, twice, x.numel())
        inner[grid](twice, out, x.numel(), B=64)
        return out + 1

    compiled, x = torch.compile(launched), torch.randn(4096, device="cuda")
    compiled(x)
    precompiled.wait(300)
    check(compiled(x), x * 105 + 1)
    return report()


def closures() -> dict[str, Any]:
    """Like ``kernels``, but the last kernel has a closure. torch does not compile such a kernel."""
    try:
        return kernels(with_a_closure())
    except Exception as error:
        return report(error=type(error).__name__)


def plain() -> dict[str, Any]:
    """The program calls one compiled function before and after its swap."""
    compiled, x = torch.compile(waved), torch.randn(4096, device="cuda")
    compiled(x)
    precompiled.wait(300)
    check(compiled(x), waved(x))
    return report(device=torch.cuda.get_device_name(0))


def attended(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(x, x, x).sin()


def attention_order() -> dict[str, Any]:
    """The program compiles one graph before and after its first attention. After the first attention, torch prefers
    cuDNN on some GPUs.
    """
    x = torch.randn(1, 2, 16, 32, device="cuda")
    # torch has an order of kernels even if the program has disabled all kernels that could run this attention.
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        torch.compile(waved)(x)
        precompiled.wait(300)
    for _ in range(2):
        torch._dynamo.reset()
        torch.compile(waved)(x)
        precompiled.wait(300)
        attended(x)
    return report(order=torch._C._get_sdp_priority_order())


def attention_package() -> dict[str, Any]:
    compiled, x = torch.compile(attended), torch.randn(1, 2, 16, 32, device="cuda")
    compiled(x)
    precompiled.wait(300)
    check(compiled(x), attended(x))
    return with_packages(report())


def package() -> dict[str, Any]:
    """Like ``plain``, with packages: the first run records a package, and the next run uses it."""
    return with_packages(plain())


def with_packages(answer: dict[str, Any]) -> dict[str, Any]:
    from precompiled.client.process import PROCESS

    PROCESS.packages.flush()  # type: ignore[union-attr]
    return {
        **answer,
        "frames": dict(torch._dynamo.utils.counters["frames"]),
        "packages": [vars(report) for report in precompiled.package_report()],
    }


if __name__ == "__main__":
    precompiled.enable()
    print(json.dumps(globals()[sys.argv[1]](), default=str), flush=True)
