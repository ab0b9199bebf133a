"""Defines the result of a check of `precompiled doctor`."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Check:
    """The result of one check. The field names are public: `precompiled doctor --json` prints them."""

    check: str
    # fail: no graph is served; warn: some graphs are not served, or served slowly; info: not a problem, but worth a
    # line
    state: Literal["ok", "info", "warn", "fail"]
    message: str
    action: str = ""


def ask_program(arguments: Sequence[str]) -> tuple[int, str]:
    """Run a program. Returns its exit status (127 if it does not exist, 124 after TIMEOUT_S) and its output."""
    try:
        done = subprocess.run(
            list(arguments),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        return 127, ""
    except OSError as error:
        return 126, str(error)
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {TIMEOUT_S:g} s"
    return done.returncode, done.stdout.strip() or done.stderr.strip()
