"""Defines the callable that Dynamo keeps for a graph: it runs eager until the artifact arrives, then compiled.

- An artifact without guards serves every call. The swap replaces one reference, and calls check nothing.
- If an artifact has guards on symbolic sizes, each call checks them. A call that no variant serves runs eager, and
  submits a variant for its sizes.
- While a run may be repeated (a checkpoint), the swap waits for a safe point (safe_points.py).
- Some graphs must not run eager (stand_in.py), so their calls wait for the artifact. If two calls must draw the same
  random numbers and the first call ran compiled, the second call waits too.
- A graph in pieces (pieces.py) and the whole graph save different tensors and draw different random numbers. So a call
  that must match another call treats code in pieces like eager code.
- If an eager run raises, the call waits for compiled code, and the graph no longer runs eager. (Torch can generate code
  for some operators, types and values for which it has no eager kernel.)
- If compiled code is slower than the code that it replaced, the earlier code serves the graph again (serving_code.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from precompiled.client.eager_runner import EagerRunner
from precompiled.client.ledger import GraphCalls
from precompiled.client.safe_points import SafePoint
from precompiled.client.serving_code import ServingCode
from precompiled.client.speed_trial import Lost, SpeedTrial
from precompiled.core import interruptions
from precompiled.torch_internals.client import profiler_ranges

Compiled = Callable[..., Any]
Check = Callable[[list[int]], bool]
# The maximum number of variants that a process submits for one graph. Without a limit, a loop whose sizes always change
# would fill the queue.
MAX_REQUESTS = 16
AWAITS_SAFE_POINT = "the artifact is loaded; it awaits the end of a checkpoint in which the graph ran without it"


class Dispatch:
    """Serves the calls of one graph. Dynamo gets ``call``. Any thread may swap in compiled code by ``serve_with``."""

    def __init__(
        self,
        calls: GraphCalls,
        eager: EagerRunner,
        size_inputs: list[int],
        request_variant: Callable[[list[int]], None],
        is_capturing: Callable[[], bool] | None = None,
        safe_point: SafePoint | None = None,
        *,
        waits: bool = False,
        stays_eager: bool = False,
        without_a_job: Callable[[list[int]], None] = lambda sizes: None,
        raised: Callable[[Exception, bool], None] = lambda error, served: None,
        lost: Callable[[Lost], None] | None = None,
    ) -> None:
        """Make the dispatch of a graph that runs eager so far.

        - ``is_capturing``: returns whether a CUDA graph capture is running. Code must not run for the first time in a
          capture, because its first run loads and measures kernels.
        - ``safe_point``: the safe point of the graph's function
        - ``waits``: whether the graph must not run eager, so that calls wait for an artifact
        - ``stays_eager``: whether calls run eager even with an artifact (session.py)
        - ``without_a_job``: called with the values of the size inputs if a call must wait, but no job was submitted for
          these values. The function may add to ``awaits``. If the function raises, the call raises.
        - ``raised``: called with an eager run's error and False before the call waits for compiled code. Called again,
          with the error and True, if compiled code has served the call.
        - ``lost``: called when eager code serves the graph again, because compiled code was slower. If None, calls are
          not measured.
        """
        self._calls = calls
        self._eager = eager
        self._size_inputs = size_inputs
        self._request_variant = request_variant
        self._safe_point = safe_point or SafePoint()
        self._waits = waits
        self._stays_eager = stays_eager
        self._without_a_job = without_a_job
        self._raised = raised
        self._is_capturing = is_capturing
        self._variants: list[tuple[Check, Compiled]] = []  # the variants that serve calls; the list only grows
        # All loaded variants. Some may still wait for a safe point. Code in pieces is not in this list.
        self._loaded: tuple[tuple[Check | None, Compiled], ...] = ()
        self._pieces: Compiled | None = None
        self._whole: Compiled | None = None  # the code of the whole graph that replaced the pieces
        self._requested: set[tuple[int, ...]] = set()
        # Maps a combination of size values to a function, which waits until the variant for these values is compiled
        # and loaded. Submitter adds the items.
        self.awaits: dict[tuple[int, ...], Callable[[], None]] = {}
        # Maps values of the size inputs to an action that runs before the next call with these values.
        self._before: dict[tuple[int, ...], Callable[[], None]] = {}
        trial = SpeedTrial(self._sizes, self._until_next, self._is_free) if lost is not None else None
        self._code = ServingCode(trial, self._run_eager_again, self._serve_calls, self._went_back)
        self._lost = lost

        flipped: Compiled | None = None

        def run_eager(*args: object) -> object:
            return self._run_eager(args, lambda: flipped)

        unserved = self._code.measured(run_eager)

        run: Compiled = unserved

        def call(*args: object) -> object:
            calls.calls += 1
            return run(*args)

        def flip(function: Compiled) -> None:
            nonlocal run, flipped
            if calls.calls_before_flip is None:
                calls.calls_before_flip = calls.calls
            run = flipped = function

        def before_next_call(action: Callable[[], None], *, in_captures: bool = True) -> None:
            nonlocal run
            then = run

            def first(*args: object) -> object:
                nonlocal run
                if not in_captures and is_capturing is not None and is_capturing():
                    return then(*args)
                if run is first:
                    run = then
                action()
                return then(*args)

            run = first

        self.call = call
        self._flip = flip
        self.has_lost_pieces = False  # whether eager code serves the graph again, because its pieces were slower
        self.pieces_lost: Callable[[], None] = lambda: None  # called when the pieces lose; graph_lookup.py sets it
        # Run ``action`` before the next call. A fork's child uses this method to await an artifact only if the child
        # calls the graph. With ``in_captures`` false, calls in a CUDA graph capture do not run ``action``.
        self.before_next_call = before_next_call

    @property
    def eager(self) -> EagerRunner:
        return self._eager

    def is_served(self) -> bool:
        """Whether compiled code is loaded."""
        return bool(self._loaded) or self._pieces is not None

    def before_call_with(self, sizes: list[int], action: Callable[[], None]) -> None:
        """Run ``action`` before the next call with these sizes, unless a variant serves the call or a CUDA graph
        capture is running.
        """
        self._before[tuple(sizes)] = action

    def serve_with(self, function: Compiled, check: Check | None = None, *, in_pieces: bool = False) -> None:
        """Serve calls with ``function`` from the next call or the next safe point on.

        ``check`` returns whether ``function`` serves given values of the size inputs. If ``check`` is None, it
        serves all values. ``in_pieces``: the artifact of the whole graph will follow.
        """
        if self._stays_eager:
            function = self._eager
        if in_pieces:
            self._pieces = function = functools.partial(self._run_pieces, function)
        else:
            self._loaded = (*self._loaded, (check, function))
        serve = functools.partial(self._serve, function, check, in_pieces=in_pieces)
        self._safe_point.when_safe(serve, otherwise=self._say_that_it_awaits)

    def _say_that_it_awaits(self) -> None:
        self._calls.report.message = AWAITS_SAFE_POINT

    def _serve(self, function: Compiled, check: Check | None, *, in_pieces: bool) -> None:
        if self._calls.report.message == AWAITS_SAFE_POINT:
            self._calls.report.message = ""
        if check is None:
            name = self._calls.report.name
            if not in_pieces:
                self._whole = function

            def prepare(ran: Callable[[Compiled], None]) -> Compiled:
                return profiler_ranges.wrap_swapped(self._not_first_in_a_capture(function, ran), name, ran)

            self._code.replace(prepare, in_pieces=in_pieces)
            return
        slot = len(self._variants)

        def settle(function: Compiled) -> None:
            self._variants[slot] = (check, function)

        self._variants.append((check, self._not_first_in_a_capture(function, settle)))
        self._flip(self._guarded)

    def _serve_calls(self, code: Compiled) -> None:
        self._flip(code)

    def _went_back(self, lost: Lost, to: Compiled, in_pieces: bool) -> None:
        if in_pieces:
            self.has_lost_pieces = True
            self.pieces_lost()
        elif to == self._run_eager_again and self._lost is not None:
            self._lost(lost)
        else:
            self._whole = None
            self._calls.report.message = f"runs compiled in pieces, because the whole graph is slower: {lost}"

    def _run_eager_again(self, *args: object) -> object:
        self._calls.ran_eager("timed")
        return self._run_eager(args, lambda: None)

    def _sizes(self, args: Sequence[Any]) -> tuple[int, ...]:
        return tuple(args[position] for position in self._size_inputs)

    def _until_next(self, args: Sequence[object]) -> bool:
        return self._is_capturing is not None or self._eager.is_recorded(args)

    def _is_free(self, args: Sequence[object]) -> bool:
        eager = self._eager
        return not (
            self._waits
            or (self._is_capturing is not None and self._is_capturing())
            or eager.repeated(args)[0] is not None
            or eager.must_not_mix(args)
            or eager.looks_for_nan(args)
        )

    def _not_first_in_a_capture(self, function: Compiled, settle: Callable[[Compiled], None]) -> Compiled:
        """Return a callable that runs ``function``, but runs eager if ``function``'s first run would be in a CUDA graph
        capture.

        After the first run, the callable passes ``function`` to ``settle``, so that later calls skip this check.
        """
        is_capturing, eager = self._is_capturing, self._eager
        if is_capturing is None:
            return function

        def first(*args: object) -> object:
            if is_capturing():
                self._calls.ran_eager("capture")
                return eager(*args)
            result = function(*args)
            settle(function)
            return result

        return first

    def _variant(self, sizes: list[int]) -> Compiled | None:
        return next((function for check, function in self._variants if check(sizes)), None)

    def _guarded(self, *args: Any) -> object:
        sizes = [args[position] for position in self._size_inputs]
        for check, function in self._variants:
            if check(sizes):
                return function(*args)
        is_capturing = self._is_capturing is not None and self._is_capturing()
        # If several threads call with these sizes, one of them runs the action.
        if not is_capturing and (action := self._before.pop(tuple(sizes), None)) is not None:
            action()
            if (served := self._variant(sizes)) is not None:
                return served(*args)
        self._calls.ran_eager("capture" if is_capturing else "sizes")
        self._request(sizes)
        return self._run_eager(args, lambda: self._variant(sizes))

    def _request(self, sizes: list[int]) -> None:
        known = tuple(sizes)
        if known not in self._requested and len(self._requested) < MAX_REQUESTS:
            self._requested.add(known)
            self._request_variant(sizes)

    def _run_eager(self, args: tuple[object, ...], served: Callable[[], Compiled | None]) -> object:
        """Run a call eagerly, or wait for compiled code if the call must not run eager.

        ``served()`` returns the compiled function if the swap happened after this call began, else None.
        """
        eager = self._eager
        if (self._waits or eager.looks_for_nan(args)) and (function := self._await(args)) is not None:
            return function(*args)
        return self._run_matching(args, served, lambda is_first: self._try_eager(args, is_first=is_first))

    def _run_pieces(self, pieces: Compiled, *args: object) -> object:
        return self._run_matching(args, lambda: self._whole, lambda is_first: pieces(*args))

    def _run_matching(
        self, args: tuple[object, ...], served: Callable[[], Compiled | None], run: Callable[[bool], object]
    ) -> object:
        """Call ``run``. But if another run of the same call uses the whole graph's code, wait for this code and run it.

        The argument of ``run`` says whether this is the first run of the call. A later run has the same keeper
        (safe_points.py).
        """
        eager = self._eager
        keeper, again = eager.repeated(args)
        if keeper is not None and not again:
            is_new = self._safe_point.hold(keeper)
            function = served()
            if function is None:
                del keeper  # else the traceback of an error in the graph keeps the keeper alive
                return run(is_new)
            if is_new:
                self._safe_point.release(keeper)
            return function(*args)
        # If the keeper of this call (its checkpoint) does not hold swaps back, the first run was compiled, so the
        # second run must be compiled, too. A different graph of the function may have served the first run, because
        # Dynamo first tries the graph that it used last.
        is_compiled = keeper is not None and not self._safe_point.is_held(keeper)
        if is_compiled or eager.must_not_mix(args):
            function = self._await(args, whole=True)
            if function is not None:
                return function(*args)
        return run(not again)

    def _try_eager(self, args: tuple[object, ...], *, is_first: bool) -> object:
        """Run eager. If the eager run raises, undo it and run compiled code instead.

        The program gets the eager run's exception only if compiled code raises too.

        ``is_first``: False if an earlier eager run has the same keeper. Then this run must be eager too, because
        compiled code would not match the earlier run.
        """
        eager = self._eager
        if not is_first or self._stays_eager or (self._is_capturing is not None and self._is_capturing()):
            return eager(*args)
        undo = eager.before(args)
        try:
            return eager(*args)
        except Exception as error:
            interruptions.pass_on(error)
            if not undo(error):
                raise
            cause = error
        # Run compiled code outside the except block. In the block, the eager run's error would become the context of
        # the compiled code's exceptions.
        return self._run_instead(args, cause)

    def _run_instead(self, args: tuple[object, ...], error: Exception) -> object:
        """Run compiled code after the eager run raised ``error`` and was undone. Raises ``error`` if no compiled code
        arrives.
        """
        keeper, _ = self._eager.repeated(args)
        if keeper is not None:
            self._safe_point.release(keeper)  # the checkpoint's second run will be compiled too
        del keeper
        waits, self._waits = self._waits, True
        self._raised(error, False)
        try:
            function = self._await(args)
            if function is None:
                raise error
            outputs = function(*args)
        except Exception:
            self._waits = waits  # without compiled code, or if it also raises, later calls may run eager
            raise
        self._raised(error, True)
        return outputs

    def _await(self, args: tuple[Any, ...], *, whole: bool = False) -> Compiled | None:
        """Wait for compiled code for this call. Returns None if no code will arrive. ``whole``: wait for the code of
        the whole graph, not only for its pieces.
        """
        sizes = [args[position] for position in self._size_inputs]
        if (function := self._ready(sizes, whole=whole)) is not None:
            return function
        if tuple(sizes) not in self.awaits and self._size_inputs:
            self._request(sizes)
        if self._waits and tuple(sizes) not in self.awaits:
            self._without_a_job(sizes)
        wait = self.awaits.get(tuple(sizes))
        if wait is not None:
            wait()
        return self._ready(sizes, whole=whole)

    def _ready(self, sizes: list[int], *, whole: bool) -> Compiled | None:
        """Return the loaded function for these sizes, even if the function still awaits a safe point."""
        pieces = None if whole else self._pieces
        return next((function for check, function in self._loaded if check is None or check(sizes)), pieces)


def counting(calls: GraphCalls, function: Compiled) -> Compiled:
    """Return a callable that counts its calls and runs ``function``."""

    def call(*args: object) -> object:
        calls.calls += 1
        return function(*args)

    return call
