"""Replaces the code that serves a graph's calls, and puts the earlier code back if the new code is slower."""

from __future__ import annotations

import threading
from collections.abc import Callable

from precompiled.client.speed_trial import Compiled, Lost, SpeedTrial


class ServingCode:
    """The code that serves a graph's calls, and the code that the next swap replaces. Thread-safe.

    - ``trial``: measures calls; None if calls are not measured
    - ``serve``: called with the code for the next calls
    - ``went_back``: called when a trial has put the earlier code back, with the times, the earlier code, and whether
      the new code was in pieces
    """

    def __init__(
        self,
        trial: SpeedTrial | None,
        first: Compiled,
        serve: Callable[[Compiled], None],
        went_back: Callable[[Lost, Compiled, bool], None],
    ) -> None:
        self._trial, self._present, self._serve, self._went_back = trial, first, serve, went_back
        self._swaps = 0
        self._lock = threading.Lock()

    def measured(self, code: Compiled) -> Compiled:
        """Return a callable that runs ``code`` until the next swap, and measures its calls."""
        trial = self._trial
        return code if trial is None else lambda *args: trial.call_earlier(code, args)

    def replace(self, prepare: Callable[[Callable[[Compiled], None]], Compiled], *, in_pieces: bool) -> None:
        """Serve the calls with new code, at first on trial.

        ``prepare`` takes a function ``ran``, and returns the new code. After its first call, the new code must call
        ``ran`` with the code for later calls. ``in_pieces``: whether another swap will follow.
        """
        with self._lock:
            self._swaps += 1
            swap, earlier, trial = self._swaps, self._present, self._trial
        on_trial = trial is not None and trial.may_begin
        new: Compiled

        def ran(code: Compiled) -> None:
            nonlocal new
            new = code
            if not on_trial:
                settle(code)

        def settle(code: Compiled) -> None:
            with self._lock:
                if swap == self._swaps:  # if not, a later swap has replaced this code
                    self._present = code
                    self._serve(self.measured(code) if in_pieces else code)

        def ended(lost: Lost | None) -> Compiled:
            nonlocal on_trial
            on_trial = False
            settle(new if lost is None else earlier)
            if lost is not None:
                self._went_back(lost, earlier, in_pieces)
            return new if lost is None else earlier

        new = prepare(ran)
        if trial is not None and on_trial:
            self._serve(trial.begin(earlier, lambda *args: new(*args), ended))  # noqa: PLW0108 - ``ran`` changes it
        else:
            settle(new)
