"""Pages that a command makes are what it makes now."""

from __future__ import annotations

import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("tool", "page"), [("man_page.py", "precompiled.1"), ("api_page.py", "api.md")])
def test_the_page_is_what_its_tool_makes(tool: str, page: str) -> None:
    made = runpy.run_path(str(ROOT / "tools" / tool))["page"]()
    assert (ROOT / "docs" / page).read_text() == made, f"run `python tools/{tool}`"


@pytest.mark.skipif(shutil.which("groff") is None, reason="there is no groff to read a manual page")
def test_the_manual_page_is_one() -> None:
    command = ["groff", "-man", "-ww", "-Tascii", str(ROOT / "docs" / "precompiled.1")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == "" and "explain" in done.stdout


def test_all_commands_are_in_the_manual_page() -> None:
    from precompiled.cli.app import COMMANDS

    text = (ROOT / "docs" / "precompiled.1").read_text()
    assert [name for name in COMMANDS if f".SS {name}" not in text] == []
