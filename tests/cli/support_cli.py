"""The command line in this process, by click's runner."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from precompiled.cli import app


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app.cli, list(arguments), prog_name="precompiled")


def answer(*arguments: str, status: int = 0) -> Any:
    """What a command with ``--json`` says."""
    result = invoke(*arguments, "--json")
    assert result.exit_code == status, result.output
    return json.loads(result.stdout)
