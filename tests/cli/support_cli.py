"""Support: runs the command line in the test process (with click's runner) or in a new process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from click.testing import CliRunner, Result

from precompiled.cli import app
from precompiled.store import artifact_format as fmt

KEYS = [fmt.digest(bytes([number])) for number in range(3)]


def invoke(*arguments: str, **extra: Any) -> Result:
    return CliRunner().invoke(app.cli, list(arguments), prog_name="precompiled", **extra)


def answer(*arguments: str, status: int = 0) -> Any:
    """Run a command with ``--json`` and return the document that it prints."""
    result = invoke(*arguments, "--json")
    assert result.exit_code == status, result.output
    return json.loads(result.stdout)


def precompiled(environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "precompiled", *arguments],
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
