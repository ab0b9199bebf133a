"""Tests of `make torch-tests`, with a small file in the style of torch's own tests."""

from __future__ import annotations

import textwrap
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.torch_tests.table import OURS, Found, Limits, different, examine, kind

TESTS = """
    import os
    import torch
    import torch._dynamo.test_case
    from torch._inductor.compile_fx import compile_fx

    OURS = os.environ.get("PRECOMPILED") != "0"

    class Tests(torch._dynamo.test_case.TestCase):
        def test_by_a_function(self):
            called = []

            def backend(module, inputs):
                called.append(module)
                return compile_fx(module, inputs)

            x = torch.ones(3)
            self.assertEqual(torch.compile(torch.sin, backend=backend)(x), torch.sin(x))
            self.assertTrue(called)

        def test_by_name(self):
            x = torch.ones(4)
            self.assertEqual(torch.compile(lambda x: x.cos() + 1)(x), x.cos() + 1)

        def test_swaps_before_the_second_call(self):
            def function(x):
                return x.sinh() * 3

            import precompiled

            compiled = torch.compile(function)
            for call in range(2):
                self.assertEqual(compiled(torch.ones(6)), function(torch.ones(6)))
            if os.environ.get("PRECOMPILED_MODE") == "eager" and OURS:
                self.assertEqual([graph.calls_compiled for graph in precompiled.report()][-1:], [1])

        def test_fails_in_all_ways(self):
            self.assertEqual(1, 2)

        def test_ends_ours(self):
            if OURS:
                os._exit(3)

        def test_fails_with_ours(self):
            self.assertFalse(OURS)
"""


@pytest.mark.slow
def test_test_file_is_run_in_all_ways_and_differences_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "test_small.py"
    file.write_text(textwrap.dedent(TESTS))
    found = examine(file, [], Limits(120.0, 600.0), print)
    names = {way: {name.split("::")[-1] for name in one.passed()} for way, one in found.items()}
    compiled = {"test_by_a_function", "test_by_name", "test_swaps_before_the_second_call"}
    assert names["plain"] == {*compiled, "test_ends_ours", "test_fails_with_ours"}
    assert names["cold"] == names["warm"] == names["swap"] == compiled
    for way in ("cold", "warm", "swap"):
        outcomes = {name.split("::")[-1]: outcome["outcome"] for name, outcome in different(found)[way].items()}
        assert outcomes == {"test_ends_ours": "died", "test_fails_with_ours": "failed"}
        assert {kind(outcome) for outcome in different(found)[way].values()} == {OURS}
    # The number of graphs varies, because a process that dies does not report its graphs.
    assert sum(found["cold"].graphs.values()) in (0, 1, 2, 3)


def test_difference_is_ours_unless_the_test_reads_inductors_internals() -> None:
    def difference(outcome: str, at: str) -> dict[str, str]:
        return {"test": at, "outcome": outcome, "at": at, "why": ""}

    assert kind(difference("failed", "self.assertEqual(metrics.generated_kernel_count, 1) > assertEqual")) != OURS
    assert kind(difference("failed", 'FileCheck().check("aten.mm").run(code)')) != OURS
    assert kind(difference("failed", "self.assertEqual(actual, correct) > assertEqual")) == OURS
    assert kind(difference("died", "self.assertEqual(metrics.generated_kernel_count, 1)")) == OURS
    found = Found({"a": difference("failed", "a")}, Counter(hit=2))
    again = Found.of(found.as_record())
    assert (again.tests, again.graphs) == (found.tests, found.graphs)
