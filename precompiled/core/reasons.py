"""Reads reasons.tsv, the table of all stable reason codes, and decides how a graph with a given reason runs.

A line of reasons.tsv has the tab-separated fields of a ``Reason``; empty fields at its end may be missing. The texts
are Markdown for docs/reference/reasons.md, with links that are relative to that page. ``python tools/reasons_page.py``
makes the page. Each text must be clear without the others, because ``precompiled explain CODE`` shows one line. The
modules that raise errors repeat the codes; tests/core/test_reasons.py compares both.

``outcome`` returns what the client does with a graph. This function reads no file, because it must work without free
descriptors.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path


class ReasonKind(Enum):
    """The kind of a code. The values are the headings of docs/reference/reasons.md."""

    BYPASS = "Bypass: this graph is not sent to the daemon (in process)"
    FAILURE = "Failure records: the worker could not make an artifact"
    STORE = "Fallback: the store"
    DAEMON = "Fallback: the daemon, or the wait for its artifact"
    COMMAND = "Commands and the start of the daemon"
    WATCH = "Watch mode"
    WORKER = "Why a worker ended"
    REMOTE = "The remote: if it fails, the host works alone"
    FARM = "The farm: if it fails, this host compiles all graphs"
    PACKAGE = "Packages: Dynamo traces this frame as usual"
    PACKAGE_FILE = "Package files (`save_package`, `load_package`: PackageError)"


class Outcome(Enum):
    """What the client does with a graph that has no artifact."""

    IN_PROCESS = "in process"  # compiled in the client, as by plain torch.compile
    EAGER = "eager"  # not compiled in this process
    AGAIN = "again"  # compiled or submitted a second time


_WORDS = {
    Outcome.IN_PROCESS: "the client compiles the graph in process",
    Outcome.EAGER: "the graph stays eager in this process",
    Outcome.AGAIN: "the client submits the graph again",
}

# The codes whose outcome is not IN_PROCESS. The table has the same outcomes, except for those of _EAGER_IF_IT_RUNS.
_EAGER = frozenset({"key-quarantined", "slower-than-eager", "wrong-result"})
_EAGER_IF_IT_RUNS = frozenset({"device-lost", "job-cancelled", "no-compiler", "submit-failed"})
_AGAIN = frozenset("artifact-corrupt artifact-evicted artifact-format artifact-unloadable busy stopping".split())


@dataclass(frozen=True)
class Reason:
    """One code: a line of reasons.tsv."""

    kind: ReasonKind
    code: str
    outcome: Outcome | None  # None if the code decides nothing about a graph
    meaning: str
    advice: str = ""
    then: str = ""  # the consequence, if ``_WORDS`` has no text for it

    @property
    def plain_advice(self) -> str:
        return plain(self.advice)

    @property
    def follows(self) -> str:
        """The reason's consequence, as a sentence without its full stop; "" if none."""
        if self.then or self.outcome is None:
            return self.then
        if self.code in _EAGER_IF_IT_RUNS:
            return "a graph that runs eager stays eager; the client compiles other graphs in process"
        return _WORDS[self.outcome]


def plain(text: str) -> str:
    """The table's Markdown as plain text. A link becomes a path relative to the repository."""
    return re.sub(r"\[[^]]*\]\(([^)]*)\)", lambda link: f"see {posixpath.normpath(f'docs/reference/{link[1]}')}", text)


def outcome(code: str, *, runs: bool) -> Outcome:
    """Return what the client does with a graph that has no artifact.

    ``code``: the reason why it has none. Another version of precompiled may have recorded the code. ``runs``: whether
    the graph runs eager and may continue to do so.
    """
    if code in _EAGER or (runs and code in _EAGER_IF_IT_RUNS):
        return Outcome.EAGER
    return Outcome.AGAIN if code in _AGAIN else Outcome.IN_PROCESS


@cache
def read_reasons() -> Mapping[str, Reason]:
    """Read reasons.tsv. Returns a dict from each code to its reason. Raises OSError."""
    reasons = {}
    for line in Path(__file__).with_name("reasons.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        kind, code, outcome, *texts = line.split("\t")
        reasons[code] = Reason(ReasonKind[kind], code, Outcome(outcome) if outcome else None, *texts)
    return reasons
