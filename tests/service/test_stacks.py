"""Tests that the stacks of a hanging worker are found in its output, as this Python's faulthandler writes them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from precompiled.service.stacks import STACK_BYTES, read_stacks

# Two threads wait, one of them in ``_finish``, like a wait for compilers. ``hang`` writes the stacks, as on SIGQUIT.
PROGRAM = """
import faulthandler, os, sys, threading

ready, never = threading.Barrier(3), threading.Event()

def waits():
    ready.wait()
    never.wait()

def _finish():
    waits()

def idle():
    waits()

def hang():
    faulthandler.dump_traceback(sys.stdout)
    os._exit(0)

def main():
    ready.wait()
    if sys.argv[1] == "main":
        hang()
    threading.Thread(target=hang).start()
    never.wait()

print("an earlier line\\n\\nand another", flush=True)
for target in (_finish, idle):
    threading.Thread(target=target, daemon=True).start()
main()
"""


def output(hanging: str) -> bytes:
    return subprocess.run([sys.executable, "-c", PROGRAM, hanging], check=True, stdout=subprocess.PIPE).stdout


@pytest.mark.parametrize("hanging", ["main", "other"])
def test_stacks_of_the_main_thread_the_hanging_thread_and_a_build_are_read(hanging: str) -> None:
    main, *others = read_stacks(output(hanging))
    assert "in main\n" in main and ("in hang\n" in main) == (hanging == "main")
    assert sum("in _finish\n" in stack for stack in others) == 1
    assert sum("Current thread" in stack and "in hang\n" in stack for stack in [main, *others]) == 1
    assert not any("in idle\n" in stack for stack in [main, *others])


def test_output_without_the_stack_of_the_hanging_thread_has_no_stacks() -> None:
    written = output("main")
    assert read_stacks(b"") == read_stacks(b"Current thread of the program\n\n") == []
    assert read_stacks(written[: written.index(b"Current thread")]) == []


def test_long_stack_is_cut_at_its_end() -> None:
    written = output("main")
    deepest, rest = written.split(b"in hang\n")
    (main, *_others) = read_stacks(deepest + b"in hang\n" + b'  File "x", line 1 in deep\n' * 1000 + rest)
    assert len(main) == STACK_BYTES and "in hang\n" in main


def test_bytes_that_are_no_text_do_not_matter() -> None:
    assert read_stacks(b"\xff\n\n" + output("main"))
