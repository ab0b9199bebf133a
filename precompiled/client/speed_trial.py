"""Compares the times of a graph's calls before and after a swap, and decides which code stays.

After a swap, a few calls run the new code. If these calls are slower than the last calls of the earlier code, the next
calls alternate between the earlier and the new code. They also alternate if the earlier code had only one or two calls.
The new code loses only if it is slower in each pair of alternating calls. This file needs no torch.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from precompiled.core.words import human_seconds

Compiled = Callable[..., Any]
Sizes = tuple[int, ...]

WARM_UP = 2  # uncounted calls after a swap, which load kernels and fill caches
SAMPLES = 5  # how many calls of each code, and how many pairs of calls, are compared
ENOUGH = 3  # the earlier code needs this many calls for a comparison, because its first call takes longer
# Times vary, so the new code loses only if it is slower by this factor, and by this many seconds per call.
SLOWER, LEAST_S = 1.05, 0.001
MAX_CALLS = 40  # after this many calls without a decision (if the sizes always change, for example), the new code stays


class Lost(NamedTuple):
    """The result of a trial in which the new code was slower. Each time is the median of the calls in seconds."""

    earlier_s: float
    new_s: float

    def __str__(self) -> str:
        return f"its calls took {human_seconds(self.new_s)}, those of the earlier code {human_seconds(self.earlier_s)}"


class SpeedTrial:
    """Compares the earlier and the new code of one graph. ``sizes_of`` returns a call's sizes; only calls of equal
    sizes are compared.

    - ``until_next``: whether a call's time lasts until the next call begins. Otherwise the time lasts until the call
      returns. It then contains neither the backward, nor work on a GPU that still runs.
    - ``is_free``: whether a call may run either code. It may if its results need not match those of another call.
    """

    def __init__(
        self,
        sizes_of: Callable[[Sequence[Any]], Sizes],
        until_next: Callable[[Sequence[Any]], bool],
        is_free: Callable[[Sequence[Any]], bool],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._sizes_of, self._until_next, self._is_free, self._clock = sizes_of, until_next, is_free, clock
        self._earlier: dict[Sizes, deque[float]] = {}
        self._open: tuple[float, Callable[[float], None]] | None = None  # the last call, if its time has not ended yet
        self._thread = 0

    @property
    def may_begin(self) -> bool:
        """Whether the earlier code was called, so that new code can be compared with it."""
        return bool(self._earlier)

    def call_earlier(self, code: Compiled, args: Sequence[Any]) -> Any:
        """Call the earlier code, and keep the call's time."""
        sizes = self._sizes_of(args)
        if sizes not in self._earlier and len(self._earlier) >= SAMPLES:
            del self._earlier[next(iter(self._earlier))]
        return self._timed(code, args, self._earlier.setdefault(sizes, deque(maxlen=SAMPLES)).append)

    def begin(self, earlier: Compiled, new: Compiled, ended: Callable[[Lost | None], Compiled]) -> Compiled:
        """Return a callable that serves the graph's calls until the decision.

        ``ended`` is called once with the result, which is None if the new code stays. It returns the code for the
        present call.
        """
        # Copy the times, because the program's thread may still add times while the swap thread runs this method.
        measured, self._earlier = {sizes: tuple(times) for sizes, times in dict(self._earlier).items()}, {}
        medians = {sizes: statistics.median(times) for sizes, times in measured.items() if len(times) >= ENOUGH}
        few = {sizes for sizes, times in measured.items() if len(times) < ENOUGH}
        calls = 0
        slower: list[bool] = []  # for each compared call before the codes alternate
        turns: dict[Sizes, int] = {}  # calls by sizes, while the codes alternate
        pairs: dict[Sizes, list[tuple[bool, float]]] = {}  # whether the new code ran, and its time
        thread = self._thread

        def call(*args: Any) -> Any:
            nonlocal calls
            self._end_lap()
            calls += 1
            if calls <= WARM_UP:
                return new(*args)
            compared = [pair for times in pairs.values() for pair in zip(times[::2], times[1::2], strict=False)]
            is_faster = len(slower) >= SAMPLES and sum(slower) <= SAMPLES // 2
            is_over = is_faster or len(compared) >= SAMPLES or calls > MAX_CALLS
            if is_over or threading.get_ident() != thread or not self._is_free(args):
                return ended(_lost(compared))(*args)
            sizes = self._sizes_of(args)
            if len(slower) < SAMPLES and sizes not in few:
                known = medians.get(sizes)
                return self._timed(new, args, lambda s: None if known is None else slower.append(_is_slower(s, known)))
            turn = turns[sizes] = turns.get(sizes, -1) + 1
            is_new = turn % 4 in (0, 3)  # the code that begins a pair alternates, too
            times = pairs.setdefault(sizes, [])
            return self._timed(new if is_new else earlier, args, lambda s: times.append((is_new, s)))

        return call

    def _timed(self, code: Compiled, args: Sequence[Any], note: Callable[[float], None]) -> Any:
        self._end_lap()
        self._thread = threading.get_ident()
        started = self._clock()
        if self._until_next(args):
            self._open = started, note
            return code(*args)
        result = code(*args)
        note(self._clock() - started)
        return result

    def _end_lap(self) -> None:
        """Note the time of the previous call, which ends now. Skip the call if another thread made it."""
        previous, self._open = self._open, None
        if previous is not None and self._thread == threading.get_ident():
            started, note = previous
            note(self._clock() - started)


def _is_slower(new_s: float, earlier_s: float) -> bool:
    return new_s > max(SLOWER * earlier_s, earlier_s + LEAST_S)


def _lost(pairs: Sequence[tuple[tuple[bool, float], tuple[bool, float]]]) -> Lost | None:
    """The result if the new code was slower in each of enough pairs, else None."""
    times = [dict(pair) for pair in pairs]
    if len(times) < SAMPLES or not all(_is_slower(time[True], time[False]) for time in times):
        return None
    earlier, new = (statistics.median(time[kind] for time in times) for kind in (False, True))
    return Lost(earlier, new)
