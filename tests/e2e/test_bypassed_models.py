"""Tests of `precompiled.bypass` and `precompiled.bypassed`: torch compiles the chosen graphs, and no others.

Most programs run in mode lookup, without a daemon: the reason of a graph that precompiled looks up is "lookup-only".
"""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
from support_host import Host

pytestmark = pytest.mark.integration

HEAD = """
import asyncio, json, threading, torch, precompiled
precompiled.enable()
x = torch.ones(4, 4)

class Net(torch.nn.Module):  # a graph without kernels of its own, so torch starts no C++ compiler
    def __init__(self, number=0):
        super().__init__()
        self.number = number
    def forward(self, x):
        return x @ x + self.number if self.number else x @ x

def called(compiled, times=1):
    "Call it, and return the reasons of the graphs that this made."
    before = len(precompiled.report())
    for _ in range(times):
        assert torch.equal(compiled(x), torch.full((4, 4), 4.0))
    return [graph.reason for graph in precompiled.report()[before:]]
"""


def run(host: Host, code: str, **env: str) -> Any:
    """Run the program without a daemon. Returns the parsed JSON that the program prints."""
    client = host.program("-c", HEAD + textwrap.dedent(code), env={"PRECOMPILED_MODE": "lookup", **env})
    found = client.result()
    assert not client.errors, client.text()
    return found


@pytest.mark.reason("switched-off")
def test_bypass_leaves_one_model_to_torch(host: Host) -> None:
    """Both models are of the same class. If their backends were equal, Dynamo would serve both models with one compiled
    frame.
    """
    found = run(
        host,
        """
        plain, served = precompiled.bypass(torch.compile(Net())), torch.compile(Net())
        first = called(plain, 2), called(served, 2), called(plain)
        torch.compiler.reset()
        served, plain = torch.compile(Net()), precompiled.bypass(torch.compile(Net()))
        second = called(served), called(plain)
        in_place = Net()
        in_place.compile(mode="reduce-overhead")
        assert precompiled.bypass(in_place) is in_place
        function = precompiled.bypass(torch.compile(lambda x: x @ x, fullgraph=True))
        by_name = torch.compile(Net(), backend="inductor", dynamic=True)
        third = called(precompiled.bypass(by_name)), called(in_place), called(function)
        report, served, *_ = precompiled.report()
        counted = [report.calls_are_counted, served.calls_are_counted]
        print(json.dumps([first, second, third, [report.state, report.source], counted]))
        """,
    )
    off, looked_up = ["switched-off"], ["lookup-only"]
    shown, counted = found[3:]
    assert found[:3] == [[off, looked_up, []], [looked_up, off], [off, off, off]]
    assert shown == ["bypassed", "inline"] and counted == [False, True]


def test_block_applies_to_what_it_compiles(host: Host) -> None:
    """Blocks can be nested, and an exception ends them."""
    found = run(
        host,
        """
        early, compiled_before = torch.compile(Net()), torch.compile(lambda x: x @ x)
        called(compiled_before)
        with precompiled.bypassed():
            made = torch.compile(lambda x: x.T @ x)
            try:
                with precompiled.bypassed():
                    first = called(torch.compile(lambda x: x @ x.T))
                    raise ValueError
            except ValueError:
                pass
            second = called(early), called(compiled_before)
        third = called(made), called(early), called(torch.compile(lambda x: x.T @ x.T))
        decorated = precompiled.bypassed()(called)
        fourth = decorated(torch.compile(lambda x: (x @ x).T))
        print(json.dumps([first, second, third, fourth]))
        """,
    )
    off, looked_up = ["switched-off"], ["lookup-only"]
    assert found == [off, [off, []], [off, [], looked_up], off]


def test_block_applies_to_its_thread_and_task_only(host: Host) -> None:
    found = run(
        host,
        """
        def in_thread(function, *arguments):
            found = []
            thread = threading.Thread(target=lambda: found.append(function(*arguments)))
            thread.start(); thread.join()
            return found[0]

        async def inside(entered, done):
            with precompiled.bypassed():
                entered.set()
                await done.wait()
                return called(torch.compile(lambda x: x @ x))

        async def beside(entered, done):
            await entered.wait()
            found = called(torch.compile(lambda x: x.T @ x))
            done.set()
            return found

        async def tasks():
            entered, done = asyncio.Event(), asyncio.Event()
            return await asyncio.gather(inside(entered, done), beside(entered, done))

        with precompiled.bypassed():
            other = [in_thread(called, torch.compile(lambda x: x.T @ x.T))]
            other.append(in_thread(lambda: called(torch.compile(Net()))))
            here = called(torch.compile(lambda x: x @ x.T))
        block = in_thread(precompiled.bypassed()(called), torch.compile(lambda x: (x @ x).T))
        print(json.dumps([other, here, block, asyncio.run(tasks())]))
        """,
    )
    off, looked_up = ["switched-off"], ["lookup-only"]
    assert found == [[off, looked_up], off, off, [off, looked_up]]


def test_require_permits_bypassed_graphs(host: Host) -> None:
    found = run(
        host,
        """
        found = called(precompiled.bypass(torch.compile(Net())))
        try:
            called(torch.compile(lambda x: x.T @ x))
        except precompiled.NotServed as error:
            found.append(error.code)
        print(json.dumps(found))
        """,
        PRECOMPILED_REQUIRE="1",
    )
    assert found == ["switched-off", "lookup-only"]


def test_other_switches_and_mistakes_raise_nothing(host: Host) -> None:
    code = """
        import warnings
        plain = precompiled.bypass(torch.compile(Net()))
        precompiled.disable()
        found = called(plain)
        later = precompiled.bypass(torch.compile(lambda x: x @ x))
        precompiled.enable()
        found += called(later)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            same = Net()
            assert precompiled.bypass(same) is same
            precompiled.bypass(torch.compile(Net(), backend="eager"))
        @torch.compile
        def inside(x):
            with precompiled.bypassed():
                return x @ x
        called(inside)
        print(json.dumps([found, [str(warning.message) for warning in caught]]))
        """
    found, warned = run(host, code)
    assert found == ["switched-off"]
    assert len(warned) == 2 and "no effect on Net:" in warned[0] and "bypass(torch.compile(model))" in warned[0]
    assert run(host, code, PRECOMPILED="0")[0] == []


SERVED = """
plain, served = precompiled.bypass(torch.compile(Net())), torch.compile(Net())
with precompiled.bypassed():
    in_block = called(torch.compile(lambda x: x.T @ x))
reasons = [called(plain), in_block, called(served)]
precompiled.wait()
called(served)
functions = [(report.name.rpartition(".")[2], report.state) for report in precompiled.package_report()]
print(json.dumps([reasons, [graph.source for graph in precompiled.report()], functions]))
"""


def test_packages_neither_record_nor_serve_bypassed_functions(served: Host) -> None:
    env = {"PRECOMPILED_MODE": "eager", "PRECOMPILED_PACKAGES": "program"}
    off = ["switched-off"]
    program = served.root / "program.py"
    program.write_text(HEAD + SERVED)
    first = served.program(str(program), env=env, forked=False).result()
    assert first == [[off, off, [""]], ["inline", "inline", "swap"], [["forward", "recorded"]]]
    second = served.program(str(program), env=env, forked=False).result()
    assert second == [[off, off, [""]], ["inline", "inline", "package"], [["forward", "used"]]]
    assert served.stats().bypassed == {"switched-off": 4}
