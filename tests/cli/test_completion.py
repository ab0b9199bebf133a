"""Tests of the completion scripts for shells. The script for bash is also run in bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support_cli import answer, invoke


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script(shell: str) -> None:
    script = answer("tools", "completion", shell)["script"]
    assert f"_PRECOMPILED_COMPLETE={shell}_complete" in script
    assert invoke("tools", "completion", shell).output == script.rstrip() + "\n"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["expl"], "explain"),
        (["explain", "no-dae"], "no-daemon"),
        (["explain", "--new"], "--newest"),
        (["tools", "completion", "f"], "fish"),
        (["config", "show", "wait"], "wait_s"),
        (["cache", "cl"], "clear"),
        (["remote", "keys", "tr"], "trust"),
        (["daemon", "cancel", "--js"], "--json"),
    ],
)
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes(words: list[str], found: str) -> None:
    """Calls the completion function of the script as bash does, with the words and the index of the current word."""
    folder = Path(sys.executable).parent
    line = ["precompiled", *words]
    script = (
        'eval "$(precompiled tools completion bash)"; '
        f"COMP_WORDS=({' '.join(line)}); COMP_CWORD={len(line) - 1}; "
        f'_precompiled_completion precompiled; echo "${{COMPREPLY[@]}}"'
    )
    variables = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], env=variables, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == [found], done
