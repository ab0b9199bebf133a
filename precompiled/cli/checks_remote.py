"""doctor's checks of the remote: does it answer, and does this host trust its objects?"""

from __future__ import annotations

from collections.abc import Iterator

from precompiled.cli import remote
from precompiled.cli.check import Check
from precompiled.core.config import Settings


def run(settings: Settings) -> Iterator[Check]:
    if not settings.remote:
        return
    problem = remote.problem(settings)
    if problem is None:
        yield Check("remote", "ok", f"{settings.remote} answers")
    else:
        yield Check("remote", "warn", f"{problem.code}: {problem.message}", problem.action or "Check its address")
    if settings.remote_unsigned:
        yield Check(
            "remote trust",
            "warn",
            f"everyone who can write to {settings.remote} runs code as you (remote_unsigned)",
            "Create a key with `precompiled remote keys new`, and unset `remote_unsigned`",
        )
    state = remote.last_state(settings)
    wrong = {**((state or {}).get("refused") or {}), **((state or {}).get("failed") or {})}
    if state is not None and (state.get("reason") or wrong):
        code = state.get("code") or next(iter(wrong))
        yield Check("remote helper", "warn", remote.line(state), f"`precompiled explain {code}`")
