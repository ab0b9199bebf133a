"""Captures a graph that launches Triton kernels of a user, or decodes such a graph as a worker does.

The program does not compile or run the graph. Usage: user_kernel_program.py FOLDER SPEC. FOLDER contains
``kernels.py``. SPEC is a JSON object:

    {"launch": ["kernel", ...]}   launch these kernels of the module, in order
    "first": ["kernel", ...]      launch these kernels before the capture
    {"decode": FILE}              decode the capture in FILE
    "set": {"NAME": value}        set globals of the module first, as a program may at run time
    "main": true                  the module is the main program, whose definitions cannot be imported

Prints one line of JSON. Dynamo traces kernels only if there is a GPU, so a GPU is simulated.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.utils._triton
from torch._dynamo.variables import builder
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

from precompiled.core.errors import Bypass
from precompiled.graph import capture, key
from precompiled.torch_internals.graph import graph_codec

N = 64


def launches(module: torch.fx.GraphModule) -> list[dict[str, Any]]:
    """Returns the kernels that the graph launches, without their numbers in torch's table of kernels."""
    found = []
    for node in module.graph.nodes:
        if node.op == "call_function" and "triton" in str(node.target):
            kernel = kernel_side_table.get_kernel(node.kwargs["kernel_idx"])
            function = getattr(kernel, "fn", kernel) if hasattr(kernel, "configs") else kernel
            found.append(
                {
                    "kernel": f"{function.__module__}.{function.__name__}",
                    "configs": [str(config) for config in getattr(kernel, "configs", [])],
                    "constants": {
                        name: str(value)
                        for name, value in kernel_side_table.get_constant_args(node.kwargs["constant_args_idx"]).items()
                    },
                    "grid": str(node.kwargs["grid"]),
                    "tensors": sorted(node.kwargs["kwargs"]),
                }
            )
    return found


def main() -> None:
    folder, spec = Path(sys.argv[1]), json.loads(sys.argv[2])
    sys.path.insert(0, str(folder))
    if "decode" in spec:
        program = capture.parse(Path(spec["decode"]).read_bytes())
        try:
            print(json.dumps({"launches": launches(graph_codec.decode(program["graph"]))}))
        except (ValueError, ImportError, AttributeError) as error:
            print(json.dumps({"refused": str(error)}))
        return

    import triton

    if spec.get("main"):
        exec(compile((folder / "kernels.py").read_text(), str(folder / "kernels.py"), "exec"), globals())
        kernels: Any = sys.modules["__main__"]
    else:
        import kernels

    for name, value in spec.get("set", {}).items():
        setattr(kernels, name, triton.language.constexpr(value))
    torch.utils._triton.has_triton = builder.has_triton = lambda *_args, **_kwargs: True  # type: ignore[assignment]

    names = [*spec.get("first", []), *spec["launch"]]
    made = {name: kernels.nested[name]() if name in kernels.nested else getattr(kernels, name) for name in names}

    def launch(names: list[str], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for name in names:
            kernel = made[name]
            grid = (triton.cdiv(N, 16),)
            if name == "tuned":
                kernel[lambda meta: (triton.cdiv(N, meta["B"]),)](x, y, out, N)
            elif name in ("guessed", "both"):
                kernel[grid](x, y, out, N)
            elif name == "typed":
                kernel[grid](x, y, out, N, B=16, T=triton.language.float32)
            else:
                kernel[grid](x, y, out, N, B=16)
        return out

    answer: dict[str, Any] = {}

    def backend(module: torch.fx.GraphModule, _inputs: list[Any]) -> Any:
        try:
            program = capture.capture(module, {})
        except Bypass as error:
            answer.update(code=error.code, message=str(error))
        else:
            (folder / "program").write_bytes(program.to_bytes())
            answer.update(key=key.key(program.sections), modules=sorted(program.modules), launches=launches(module))
        return lambda *_args: (torch.zeros(N),)

    x, y = torch.randn(N), torch.randn(N)
    if "first" in spec:
        torch.compile(launch, backend=lambda module, _inputs: lambda *_args: (torch.zeros(N),))(spec["first"], x, y)
        torch._dynamo.reset()
    torch.compile(launch, backend=backend, fullgraph=True)(spec["launch"], x, y)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
