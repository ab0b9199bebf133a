"""A program whose SIGALRM handler raises while precompiled's code runs.

Usage: interrupted_program.py hit|miss TRIES SEED. Each try interrupts one first call at a random moment. Prints JSON:
the places at which an exception of the handler did not reach the program, and how the last graph was served.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from types import FrameType
from typing import Any

import torch

import precompiled

OURS = os.path.dirname(precompiled.__file__)
# Dynamo runs the functions of this file as callbacks. An exception at the first instruction of a callback leaves
# Dynamo's count of frames wrong, and torch.compiler.reset() then fails.
CALLBACKS = os.path.join(OURS, "torch_internals", "client", "garbage_collection.py")
AGAIN_S = 0.0001  # after this time the handler looks again whether precompiled's code runs


class Expired(Exception):
    """The program's own exception. The handler raises it."""


class ExpiredValue(ValueError):
    """An exception like Expired, but of a class that precompiled itself might raise for a damaged artifact."""


class ExpiredTime(TimeoutError):
    """An exception like Expired, but of the class that most programs raise: an OSError."""


class Alarm:
    """Raises once, in a frame of precompiled's code."""

    def __init__(self, kind: type[Exception]) -> None:
        self.kind, self.at = kind, ""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.at:
            return
        assert frame is not None
        file = frame.f_code.co_filename
        if not file.startswith(OURS) or file == CALLBACKS:
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
            return
        self.at = "".join(traceback.format_stack(frame, 6))
        raise self.kind

    def reached(self, error: Exception) -> bool:
        """Whether the error is this alarm, or an exception of Dynamo whose text names the alarm."""
        return self.kind.__name__ in f"{type(error).__name__} {error}"


def main() -> None:
    how, tries, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    precompiled.enable()
    chosen, x = random.Random(seed), torch.arange(8.0)

    def compiled(number: float) -> Any:
        torch._dynamo.reset()
        return torch.compile(lambda x: (x * 2 + number).relu())

    compiled(0)(x)
    assert precompiled.wait(300)
    started = time.perf_counter()
    compiled(0)(x)
    lasts_s = time.perf_counter() - started

    number, interrupted, swallowed = 0, 0, []
    while interrupted < tries:
        number += 1
        alarm = Alarm(chosen.choice([Expired, ExpiredValue, ExpiredTime]))
        constant = 0 if how == "hit" else number
        function = compiled(constant)
        signal.signal(signal.SIGALRM, alarm)
        signal.setitimer(signal.ITIMER_REAL, chosen.uniform(AGAIN_S, lasts_s))
        try:
            function(x)
            # Within this method torch itself handles OSError.
            if alarm.at and not (alarm.kind is ExpiredTime and "in after_deserialization" in alarm.at):
                swallowed.append(f"{alarm.kind.__name__}\n{alarm.at}")
        except Exception as error:
            if not alarm.reached(error):
                raise
        finally:
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            signal.setitimer(signal.ITIMER_REAL, 0)
        interrupted += bool(alarm.at)
        torch.testing.assert_close(compiled(constant)(x), (x * 2 + constant).relu())
    last = precompiled.report()[-1]
    print(json.dumps({"swallowed": swallowed, "last": [last.state, last.source]}))


if __name__ == "__main__":
    main()
