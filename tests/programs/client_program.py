"""A program of a user that calls torch.compile while the hook is on, and compares the results with eager.

Usage: client_program.py SPEC. SPEC is a JSON object (see ``main``). With ``"steps_until"`` the program runs steps until
a file appears. The program prints ``@event`` lines, for which tests can wait, and one line of JSON at its end.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

STARTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.spawn", "os.system", "os.exec"})


def build(name: str, training: bool) -> tuple[torch.nn.Module, dict[str, Any]]:
    """Returns a model with random weights, and its inputs.

    The models have no dropout, because eager and compiled code draw different random numbers.
    """
    torch.manual_seed(0)
    if name == "mlp":
        model = _Mlp()
        inputs: dict[str, Any] = {"x": torch.randn(8, 16)}
    elif name == "broken":
        model = _Broken()
        inputs = {"x": torch.randn(8, 16)}
    elif name == "reduction":
        model = _Reduction()
        inputs = {"x": torch.randn(4096, 2048)}
    elif name == "sum":
        model = _Sum()
        inputs = {"x": torch.randn(8, 16)}
    elif name == "long-name":
        model = _Chain()
        inputs = {"x": torch.rand(8, 16)}
    elif name == "user-kernels":
        from user_kernels import Launches

        model = Launches()
        inputs = {"x": torch.randn(8, 16)}
    elif name == "gpt2":
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            n_layer=2, n_head=2, n_embd=64, vocab_size=256, n_positions=64, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
        )
        model = GPT2LMHeadModel(config)
        tokens = torch.randint(0, 256, (2, 32))
        inputs = {"input_ids": tokens, "labels": tokens} if training else {"input_ids": tokens}
    elif name == "bert":
        from transformers import BertConfig, BertForSequenceClassification

        config = BertConfig(
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=128,
            vocab_size=256,
            hidden_dropout_prob=0,
            attention_probs_dropout_prob=0,
        )
        model = BertForSequenceClassification(config)
        tokens = torch.randint(0, 256, (2, 32))
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        if training:
            inputs["labels"] = torch.tensor([0, 1])
    elif name == "resnet":
        from transformers import ResNetConfig, ResNetForImageClassification

        config = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=4)
        model = ResNetForImageClassification(config)
        inputs = {"pixel_values": torch.randn(4, 3, 32, 32)}
        if training:
            inputs["labels"] = torch.tensor([0, 1, 2, 3])
    else:
        raise ValueError(name)
    return model.train(training), inputs


class _Reduction(torch.nn.Module):
    """A model whose looped reductions become one kernel. At full occupancy, a GPU has too few registers for this
    kernel.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x * x.sin(), (x.shape[1],)) * (x * x.cos()).var(1, keepdim=True)


class _Sum(torch.nn.Module):
    """A model whose backward does not compute anything."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight


class _Chain(torch.nn.Module):
    """A model with one kernel. The kernel has so many operators that its name has more than 150 characters."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in ("hardsigmoid", "logsigmoid", "hardswish", "softplus", "leaky_relu", "softshrink", "hardshrink"):
            x = getattr(torch.nn.functional, name)(x)
        for name in ("sinc", "reciprocal", "nan_to_num", "square", "expm1", "floor", "logical_not", "heaviside"):
            x = (x.heaviside(x) if name == "heaviside" else getattr(x, name)()).to(torch.float32)
        return x


class _Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class _Broken(torch.nn.Module):
    """A model for a graph that precompiled refuses. The graph's two inputs share memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.relu(x) + 1


def first_tensor(output: Any, training: bool) -> torch.Tensor:
    if isinstance(output, torch.Tensor):
        return output.square().mean() if training else output
    return output.loss if training else output.logits


def step(function: Any, model: torch.nn.Module, inputs: dict[str, Any], training: bool) -> list[torch.Tensor]:
    """Run one step and restore changed buffers (batch norm). Returns the result and, in training, all gradients."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    if training:
        result = first_tensor(function(**inputs), True)
        result.backward()
        found = [result.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
        found += [buffer.clone() for buffer in model.buffers()]
        model.zero_grad(set_to_none=True)
    else:
        with torch.no_grad():
            found = [first_tensor(function(**inputs), False)]
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    return found


def compare(got: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """Compare with tolerances like those of torch's own Inductor tests (test_torchinductor.py: atol 1e-4, rtol 1e-4).

    Compiled kernels do not run on a made-up device. On such a device, only shapes, types and strides of compiled steps
    are compared.
    """
    import precompiled

    assert len(got) == len(expected)
    computed = not os.environ.get("CUDA_MADE_UP") or all(graph.state == "pending" for graph in precompiled.report())
    for left, right in zip(got, expected, strict=True):
        if computed:
            torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-4)
        else:
            described = [(one.shape, one.dtype, one.device, one.stride()) for one in (left, right)]
            assert described[0] == described[1], described


def to_device(inputs: dict[str, Any], device: str) -> dict[str, Any]:
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}


def uses_cudagraphs() -> bool:
    """Returns whether this process has recorded a CUDA graph."""
    from torch._inductor import cudagraph_trees

    return cudagraph_trees.get_manager(0, create_if_none_exists=False) is not None


def say(event: str) -> None:
    print(f"@{event}", flush=True)


def main() -> None:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    training = bool(spec.get("training"))
    import precompiled

    if spec.get("enable", True):
        precompiled.enable()
    model, inputs = build(spec["model"], training)
    device = spec.get("device", "cpu")
    if spec.get("current") is not None:
        torch.cuda.set_device(spec["current"])
    model, inputs = model.to(device), to_device(inputs, device)
    # Records each process that this program starts, including processes that end before the children are listed.
    started: list[str] = []
    sys.addaudithook(lambda event, args: started.append(f"{event} {args[:2]}") if event in STARTS else None)
    expected = step(model, model, inputs, training)
    backend = spec.get("backend", "inductor")
    compiled = torch.compile(model, backend=backend, **spec.get("compile", {}))
    child = os.fork() if spec.get("fork") == "before" else None

    compare(step(compiled, model, inputs, training), expected)
    first = [vars(graph) for graph in precompiled.report()]
    say("first-step")
    if spec.get("exit_after_first"):
        if spec.get("hard_exit"):
            os._exit(0)
        print(json.dumps({"first": first}), flush=True)
        return
    if spec.get("fork") == "pending":
        child = os.fork()

    steps = 0
    if until := spec.get("steps_until"):
        while not Path(until).exists():
            compare(step(compiled, model, inputs, training), expected)
            steps += 1
        say("stepped-on")
    waited = precompiled.wait(spec.get("wait_s", 300))
    # On a GPU there are two more steps: CUDA graphs are warmed up in the first step and recorded in the second.
    for _ in range(2 if device == "cpu" else 4):
        compare(step(compiled, model, inputs, training), expected)
    reports = [vars(graph) for graph in precompiled.report()]
    result = {
        "pid": os.getpid(),
        "first": first,
        "waited": waited,
        "reports": reports,
        "steps_before": steps,
        # torch/_dynamo/backends/common.py counts each graph that AOTAutograd compiles in this process.
        "compiles": torch._dynamo.utils.counters["aot_autograd"]["total"],
        "children": _children(),
        "started": [line for line in started if "precompiled.service" not in line],
        "cudagraphs": device != "cpu" and uses_cudagraphs(),
        "finished": time.time(),
    }
    if child is not None:
        if child == 0:
            Path(spec["child_result"]).write_text(json.dumps(result))
            sys.stdout.flush()
            sys.exit(0)
        _pid, status = os.waitpid(child, 0)
        result["child_status"] = status
        result["child"] = json.loads(Path(spec["child_result"]).read_text())
    print(json.dumps(result), flush=True)


def _children() -> list[str]:
    import psutil

    return [_describe(process) for process in psutil.Process().children(recursive=True)]


def _describe(process: Any) -> str:
    """Returns the command line of a process. A zombie has only a name."""
    import psutil

    try:
        return " ".join(process.cmdline())
    except psutil.ZombieProcess as ended:
        return f"{ended.name} (ended)"
    except psutil.NoSuchProcess:
        return f"{process.pid} (ended)"


if __name__ == "__main__":
    if json.loads(sys.argv[1]).get("in_child_of_multiprocessing"):
        child = multiprocessing.get_context("fork").Process(target=main)
        child.start()
        child.join()
        sys.exit(child.exitcode)
    main()
