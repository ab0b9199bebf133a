"""The form of a check's answer, shared by all `checks_*` modules of `precompiled doctor`."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. Field names are public: `precompiled doctor --json`."""

    check: str
    state: Literal["ok", "warn", "fail"]  # fail: graphs are not served; warn: served, but worse or not everywhere
    message: str
    action: str = ""


def ask_program(arguments: Sequence[str]) -> tuple[int, str]:
    """Exit status and output of a small program; 127 when it is not there, 124 when it does not answer."""
    try:
        done = subprocess.run(
            list(arguments), capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except FileNotFoundError:
        return 127, ""
    except OSError as error:
        return 126, str(error)
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {TIMEOUT_S:g} s"
    return done.returncode, done.stdout.strip() or done.stderr.strip()
