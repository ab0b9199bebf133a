"""Defines the cause of a cache miss, and what the user can do about each kind of cause."""

from __future__ import annotations

from dataclasses import dataclass

from precompiled.graph.listing import Place
from precompiled.graph.mode_names import PROCESS_WIDE, SET_BY

_ADVICE = {
    "size": "use torch._dynamo.mark_dynamic or dynamic=True, so that one artifact serves several sizes",
    "small": "torch compiles the sizes 0 and 1 separately from other sizes, even after mark_dynamic. "
    "If the code accepts all sizes, use torch._dynamo.decorators.mark_unbacked, so that they share one trace",
    "dynamic": "mark the size with torch._dynamo.mark_dynamic before the first call, so that all sizes share one trace",
    "number": "pass dynamic=True to torch.compile, so that one trace accepts every number",
    "parameter": "each size of the model has its own artifacts; the next run finds the new ones",
    "model": "each model has its own artifacts; the next run finds the new ones",
    "range": "use the same range in all runs (torch._dynamo.mark_dynamic(min=, max=), torch._check)",
    "dtype": "each dtype has its own artifact; to use only one, cast the input before the call",
    "input": "each kind of input has its own artifact; to use only one, pass the same kind in all calls",
    "edit": "the next run finds the new artifact. `precompiled watch` compiles an edit when you save it",
    "way": "if you edited the code, the next run finds the new artifact; otherwise find out why another line ran",
    "operation": "if the code or the model differs, the next run finds the new artifact",
    "operations": "if the code or the model differs, the next run finds the new artifact",
    "value": "if the operation accepts a tensor, use one instead of the number, so that one artifact serves all values",
    "flag": "each value is compiled once: after train() and after eval(), for example",
    "operator": "the source of a custom operator is part of the key; the next run finds the new artifact",
    "guard": "each value has its own artifact; the next run finds the new one",
    "any": "the new artifact serves all values",
    "mode": "call the function in the same mode in all runs; otherwise each mode is compiled once",
    "setting": "use the same value in all runs",
    "variable": "use the same value in all processes, or unset the variable",
    "version": "each version has its own artifacts; the store keeps the artifacts of all versions",
    "compiler": "use the same compiler on all hosts and in all runs (CXX, PATH)",
    "cpu": "compile on a CPU like the one that runs the program",
    "new": "",
}
# The kinds with different advice if later runs find no artifact of the graph.
_ADVICE_WITHOUT_ARTIFACT = {
    "parameter": "each size of the model is compiled separately",
    "model": "each model is compiled separately",
    "edit": "",
    "way": "if you did not edit the code, find out why another line ran",
    "operation": "",
    "operations": "",
    "operator": "the source of a custom operator is part of the key",
    "guard": "each value is compiled separately",
    "any": "",
}


@dataclass(frozen=True)
class Cause:
    """One cause of a miss.

    ``kind`` is a name in _ADVICE. ``short`` is for lists ("new size"). ``what`` has the values before and after.
    ``line`` is a line of the program, or "".
    """

    kind: str
    short: str
    what: str
    line: str = ""
    set_by: str = ""  # the mode, setting or variable whose name the user can search for
    # The lines that ran before and now, if an edit or another branch is the cause.
    old_line: Place | None = None
    new_line: Place | None = None

    @property
    def advice(self) -> str:
        """What the user can do if later runs find an artifact of the graph."""
        if self.kind == "edit" and "-packages/" in self.line:  # a watch does not follow installed files
            return "the next run finds the new artifact"
        mode = self.set_by.partition(".")[0]
        if self.kind == "mode" and mode in PROCESS_WIDE:
            return f"set it to the same value in all runs ({SET_BY[mode]})"
        return _ADVICE[self.kind]

    def advise(self, *, is_served: bool) -> str:
        """What the user can do. ``is_served``: whether later runs find an artifact of the graph."""
        return self.advice if is_served else _ADVICE_WITHOUT_ARTIFACT.get(self.kind, self.advice)
