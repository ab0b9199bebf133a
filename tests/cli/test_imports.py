"""Tests that commands start fast: the tests check which modules a command imports. The time itself depends on the load
of the machine.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from support_cli import KEYS

from precompiled.store.artifacts import Store

# Modules that take longer to import than a command may take, or that only one command needs.
HEAVY = {
    "asyncio",
    "cryptography",
    "multiprocessing",
    "numpy",
    "prometheus_client",
    "psutil",
    "ray",
    "torch",
    "watchdog",
}
LIBRARIES = {*HEAVY, "rich", "msgspec"}
# Maps commands to the libraries that they need: for tables, or for the daemon's messages.
COMMANDS: dict[str, set[str]] = {
    "--help": set(),
    "status": {"msgspec"},
    "status --watch --once": {"msgspec"},
    "explain": set(),
    "explain --newest": set(),
    "explain no-daemon": set(),
    "explain pending": set(),
    "cache ls": {"rich"},
    "cache size": {"rich"},
    "cache dir": set(),
    "cache stats": {"msgspec"},
    f"cache show {KEYS[1][:8]}": set(),
    "config": {"rich"},
    "config set mode wait": set(),
    "config set workers 1": {"msgspec"},
    "daemon logs": set(),
    "daemon cancel abcd": {"msgspec"},
    "watch --list": {"msgspec"},
    "remote ls": set(),
    "remote keys list": set(),
    "farm status": set(),
    "tools completion bash": set(),
}
PROGRAM = """\
import contextlib, io, json, sys
from precompiled.cli import app
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    with contextlib.suppress(SystemExit):
        app.cli.main(sys.argv[1:])
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_imports_no_library_that_it_does_not_need(
    command: str, environment: dict[str, str], store: Store
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command.split()], env=environment, capture_output=True, text=True, check=True
    )
    assert set(json.loads(done.stdout)) & LIBRARIES <= COMMANDS[command]
