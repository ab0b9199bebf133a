"""A program that compiles a function in a way that bypasses torch.compile. Usage: around_program.py WAY.

Compares the results with eager. Prints one line of JSON: [state, source, reason] of each graph.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

import torch
import torch._inductor

import precompiled


def f(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() + 1).relu()


class Module(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return f(x)


X = torch.randn(8, 8)
FILE = os.path.join(tempfile.mkdtemp(dir=os.getcwd()), "file")


def graph_of(function: Any, *inputs: Any) -> tuple[torch.fx.GraphModule, list[Any]]:
    return torch.fx.experimental.proxy_tensor.make_fx(function)(*inputs), list(inputs)


def aot_compile(backend: str = "inductor") -> Any:
    made = torch.compile(f, fullgraph=True, backend=backend).aot_compile(((X,), {}))
    torch.testing.assert_close(made(X), f(X))
    made.save_compiled_function(FILE)
    with open(FILE, "rb") as file:
        return torch.compiler.load_compiled_function(file, f_globals=f.__globals__)(X)


def aot_compile_by_name() -> Any:
    return aot_compile("precompiled")


def aot_compile_of_a_module() -> Any:
    from torch._dynamo.aot_compile import ModelInput

    compiled = torch.compile(Module(), fullgraph=True)
    compiled._aot_compile([ModelInput((X,), {}, [])])
    data = compiled._save_aot_compiled_module()
    compiled._load_aot_compiled_module(data)
    return compiled(X)


def caching_precompile() -> Any:
    from torch._dynamo.precompile_context import PrecompileContext

    with torch._dynamo.config.patch(caching_precompile=True):
        compiled = torch.compile(f)
        compiled(X)
        saved = PrecompileContext.save_to_dynamo_cache()
        assert len(saved["dynamo"]) == len(saved["backends"]) == 1, saved
        torch._dynamo.reset()
        return torch.compile(f)(X)


def standalone_compile(aot: bool = True) -> Any:
    module, inputs = graph_of(lambda x: (f(x),), X)
    made = torch._inductor.standalone_compile(module, inputs, dynamic_shapes="from_example_inputs", aot=aot)
    made.save(path=FILE, format="binary")
    assert type(made).__name__ == ("AOTCompiledArtifact" if aot else "CacheCompiledArtifact")
    return torch._inductor.CompiledArtifact.load(path=FILE, format="binary")(X)[0]


def standalone_compile_in_a_backend() -> Any:
    def backend(module: torch.fx.GraphModule, _: Any) -> Any:
        inputs = [node.meta["example_value"] for node in module.graph.nodes if node.op == "placeholder"]
        return torch._inductor.standalone_compile(module, inputs, aot=True)

    return torch.compile(f, backend=backend)(X)


def inductor_compile() -> Any:
    module, inputs = graph_of(lambda x: (f(x),), X)
    compiled = torch._inductor.compile(module, inputs)
    assert compiled.__module__.startswith("torch."), "what it gives is torch's own"
    return compiled(X)[0]


def compiled_autograd() -> Any:
    from torch._dynamo.utils import maybe_enable_compiled_autograd

    x = X.clone().requires_grad_()
    with maybe_enable_compiled_autograd(True):
        f(x).sum().backward()
    (wanted,) = torch.autograd.grad(f(x).sum(), x)
    torch.testing.assert_close(x.grad, wanted)
    return f(X)


def aot_inductor() -> Any:
    program = torch.export.export(Module(), (X,))
    path = torch._inductor.aoti_compile_and_package(program, package_path=FILE + ".pt2")
    return torch._inductor.aoti_load_package(path)(X)


precompiled.enable()
torch.testing.assert_close(globals()[sys.argv[1]](), f(X))
print(json.dumps([[graph.state, graph.source, graph.reason] for graph in precompiled.report()]))
