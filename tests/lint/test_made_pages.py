"""Tests that generated pages equal the current output of their tools."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guides" / "upgrading.md"


@pytest.mark.parametrize(
    ("tool", "page"),
    [
        ("man_page.py", "precompiled.1"),
        ("api_page.py", "reference/api.md"),
        ("settings_page.py", "reference/settings.md"),
    ],
)
def test_page_equals_the_output_of_its_tool(tool: str, page: str) -> None:
    made = runpy.run_path(str(ROOT / "tools" / tool))["page"]()
    assert (ROOT / "docs" / page).read_text() == made, f"run `python tools/{tool}`"


def test_documented_format_numbers_are_current() -> None:
    from precompiled import wire
    from precompiled.graph import key
    from precompiled.packages import portable_format
    from precompiled.remote import envelope
    from precompiled.store import artifact_format, package_format

    here = [
        wire.PROTOCOL,
        artifact_format.FORMAT,
        key.SCHEMA,
        package_format.FORMAT,
        portable_format.FORMAT,
        envelope.FORMAT,
    ]
    rows = re.findall(r"^\|[^|]+\| `\w+\.(?:PROTOCOL|FORMAT|SCHEMA)` \| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert [int(number) for number in rows] == here, "docs/guides/upgrading.md and CHANGELOG.md tell the numbers"
    said = "protocol {}, artifacts {}, keys {}, entries of packages {}, package files {}, objects of a remote {}."
    assert said.format(*here) in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.skipif(shutil.which("groff") is None, reason="there is no groff to read a manual page")
def test_manual_page_is_valid() -> None:
    command = ["groff", "-man", "-ww", "-Tascii", str(ROOT / "docs" / "precompiled.1")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == "" and "PRECOMPILED(1)" in done.stdout


def test_manual_page_has_all_commands() -> None:
    from precompiled.cli.tree import COMMANDS

    text = (ROOT / "docs" / "precompiled.1").read_text()
    assert [name for name in COMMANDS if f".SS {name}" not in text] == []
