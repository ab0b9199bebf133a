"""Tests that a program behaves as under plain torch.compile if it raises, ends, is interrupted or traced
(sys.settrace), or resets torch's compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support_host import TIMEOUT_S, Client, Host

pytestmark = [pytest.mark.fault("program"), pytest.mark.integration]

PROGRAM = Path(__file__).parent.parent / "programs" / "troubled_program.py"
ENDS = [
    "leaves_with_pending_graphs",
    "exits_in_a_graph",
    "exits_at_once_in_a_graph",
    "raises_with_pending_graphs",
    "calls_in_an_exit_handler",
    "ends_by_a_signal",
]


@pytest.fixture(scope="module")
def runs(shared_host: Host) -> Iterator[Callable[..., list[str]]]:
    """Returns a function that runs the program with a case and a mode, and returns its output and exit status.

    The mode "off" is plain torch.compile.
    """
    known: dict[str, list[str]] = {}

    def run(case: str, mode: str) -> list[str]:
        if mode == "off" and case in known:
            return known[case]
        env = {"PRECOMPILED": "0"} if mode == "off" else {"PRECOMPILED_MODE": mode}
        client = shared_host.program(str(PROGRAM), *case.split(), env=env, forked=case not in ENDS)
        client.process.wait(TIMEOUT_S)
        found = seen_of(client)
        if mode == "off":
            known[case] = found
        return found

    yield run
    assert shared_host.stats().bypassed == {}, "the daemon serves the graphs of all cases"


def seen_of(client: Client) -> list[str]:
    """Returns what a user sees: the output, the program's own exception, and the exit status."""
    assert client.process.returncode is not None
    client.ended(status=client.process.returncode)
    errors = [line for line in client.errors if "Expired" in line]
    return [*client.lines, *errors[-1:], f"status {client.process.returncode}"]


@pytest.mark.parametrize("mode", ["eager", "wait", "eager again"])
def test_program_in_trouble_sees_what_plain_torch_compile_shows(runs: Callable[..., list[str]], mode: str) -> None:
    assert runs("", mode.split(maxsplit=1)[0]) == runs("", "off")


@pytest.mark.parametrize("case", ENDS)
def test_program_ends_with_pending_graphs_as_under_plain_torch_compile(
    runs: Callable[..., list[str]], tries: Callable[[int, int], int], case: str
) -> None:
    for _ in range(tries(1, 2)):
        assert runs(case, "eager") == runs(case, "off")


def test_signal_during_a_wait_reaches_the_program_and_the_next_call_is_served(runs: Callable[..., list[str]]) -> None:
    found = runs("ctrl_c_in_a_wait alarm_in_a_wait exit_of_a_handler_in_a_wait", "wait")
    assert found[0].startswith('["ctrl_c_in_a_wait", [["raises", "KeyboardInterrupt", ""], [1.0, 0.7206')
    assert found[1].startswith('["alarm_in_a_wait", [["raises", "BackendCompilerFailed", "Expired"], [1.0, 1.657')
    assert found[2:] == ['["exit_of_a_handler_in_a_wait", ["raises", "SystemExit", "8"]]', "status 0"]
