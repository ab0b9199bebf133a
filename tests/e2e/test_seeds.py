"""Tests of programs that run several times with edits or other settings in between.

Each program uses a feature of torch that is hard to serve across processes.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import support_corpus
from support_host import Host

pytestmark = pytest.mark.integration

FUNCTION = """
import json, torch, precompiled

class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x * BACKWARD

precompiled.enable()
compiled = torch.compile(lambda x: Scaled.apply(x) * 2)
x = torch.arange(8.0, requires_grad=True)
for _ in range(2):
    (gradient,) = torch.autograd.grad(compiled(x).sum(), x)
    precompiled.wait(300)
(graph,) = precompiled.report()
print(json.dumps([graph.source, graph.key, gradient.tolist(), torch._dynamo.utils.counters["aot_autograd"]["total"]]))
"""


def test_edit_of_a_custom_backward_alone_changes_the_key(served: Host, tmp_path: Path) -> None:
    """The forward graph does not contain a custom backward, so the key must contain the code of the custom Function."""
    program = tmp_path / "program.py"

    def run(factor: float) -> Any:
        program.write_text(FUNCTION.replace("BACKWARD", str(factor)))
        source, key, gradient, compiles = served.program(str(program)).result()
        assert gradient == [2 * factor * value for value in range(8)] and compiles == 0
        return source, key

    source, key = run(3.0)
    assert source == "swap"
    assert run(3.0) == ("hit", key)
    source, edited = run(5.0)
    assert source == "swap" and edited != key
    assert run(5.0) == ("hit", edited) and run(3.0) == ("hit", key)


@pytest.mark.parametrize(
    "order",
    [("plain_training", "compiled_autograd_plain"), ("compiled_autograd_plain", "plain_training")],
    ids=" then ".join,
)
def test_forward_is_shared_with_and_without_compiled_autograd(served: Host, order: tuple[str, str]) -> None:
    first, second = order
    populated = support_corpus.run(served, first)[first]
    answer = support_corpus.run(served, second)[second]
    assert not populated["error"] and not answer["error"]
    assert answer["graphs"][0] == ["compiled", "hit", ""]
    assert set(populated["keys"]) & set(answer["keys"])
    assert answer["compiles"] == 0


@pytest.mark.slow
def test_edit_of_a_constant_that_a_custom_op_reads_changes_the_key(served: Host, tmp_path: Path) -> None:
    """The operator's backward reads a constant of another module.

    After an edit of the constant, the key must differ. The worker must not use the old module, which it has imported.
    """
    shutil.copytree(support_corpus.PROGRAM.parent, tmp_path, dirs_exist_ok=True)

    def graphs() -> Any:
        row = support_corpus.run(served, "custom_op", program=tmp_path / support_corpus.PROGRAM.name)["custom_op"]
        assert not row["error"]
        return row["graphs"]

    assert graphs() == [["compiled", "swap", ""]]
    constants = tmp_path / "corpus" / "constants.py"
    constants.write_text(constants.read_text().replace("1.5", "4.25"))
    assert graphs() == [["compiled", "swap", ""]]
    assert graphs() == [["compiled", "hit", ""]]
