"""Defines the words that outputs show as states, for `explain WORD`."""

from __future__ import annotations

from typing import NamedTuple


class StateWord(NamedTuple):
    state: str
    meaning: str
    advice: str = ""


_EXPLAIN = "`precompiled explain` shows the reason"
_WATCHED = "`precompiled watch --list` shows the state of each watch"
_ALL = (
    # how a graph runs
    StateWord("compiled", "the graph's calls run code that a worker of the daemon compiled"),
    StateWord(
        "pending", "the graph runs eager until its artifact is ready", "`precompiled status --watch` shows its job"
    ),
    StateWord("eager", "the graph runs eager, without compiled code", _EXPLAIN),
    StateWord(
        "failed",
        "no artifact will come: the graph stays eager until the process ends. A watch with this state keeps earlier "
        "artifacts",
        "`precompiled cache show KEY` prints the traceback of a failed compile",
    ),
    StateWord("bypassed", "torch compiles the graph in the process, as without precompiled", _EXPLAIN),
    StateWord("in process", "torch compiles the graph in the process, as without precompiled", _EXPLAIN),
    StateWord("error", "calls of the graph raise an error, because PRECOMPILED_REQUIRE=1 is set", _EXPLAIN),
    StateWord("queued", "the graph waits for a worker", "`precompiled status` shows the workers and the queue"),
    StateWord("compiling", "a worker compiles the graph", "`precompiled status --watch` shows its progress"),
    # where the compiled code came from
    StateWord("hit", "the store had the artifact when the process needed it"),
    StateWord("package", "the store had the artifact and the trace, so Dynamo traced nothing"),
    StateWord("swap", "the artifact came after the graph had run eager, or after the program had waited for it"),
    StateWord("inline", "torch compiled the graph in the process, as without precompiled", _EXPLAIN),
    # what happened to a function
    StateWord("used", "a package served the function, so Dynamo did not trace it"),
    StateWord("skipped", "a package says that Dynamo leaves the function uncompiled"),
    StateWord("recorded", "Dynamo traced the function, and a package of the trace was written for later processes"),
    StateWord("traced", "Dynamo traced the function, and no package was written", _EXPLAIN),
    StateWord(
        "raised",
        "torch raised an error while Dynamo traced the function, so the function has no graph",
        "Run the program with PRECOMPILED=0: plain torch.compile raises the same error",
    ),
    StateWord("interrupted", "Ctrl-C or `sys.exit` ended the program's call while Dynamo traced the function"),
    StateWord("audited", "Dynamo traced the function to check its package, and both agree (setting package_audit)"),
    # in the store
    StateWord("artifact", "the store has compiled code for the graph"),
    StateWord("not sent", "the graph was a miss, and was not sent to a daemon (mode lookup, or no daemon)"),
    # workers and watches
    StateWord("starting", "the worker imports torch"),
    StateWord("idle", "the worker waits for a graph to compile"),
    StateWord("busy", "the worker compiles a graph"),
    StateWord("stopping", "the worker ends"),
    StateWord("reused", "a watch captured the graph, and the store had its artifact"),
    StateWord("waiting", "the watch waits until no file has changed for a moment", _WATCHED),
    StateWord("capturing", "the watch runs your program to capture its graphs", _WATCHED),
    StateWord("ready", "the store has the artifacts of all graphs that the watch captured"),
    # the remote and the farm
    StateWord("ok", "the remote or the farm answers"),
    StateWord("failing", "some requests to the remote fail", "`precompiled status` shows the reason"),
    StateWord(
        "rests", "the remote failed often, so the helper pauses requests", "`precompiled status` shows the reason"
    ),
    StateWord("unusable", "the remote or the farm cannot be used", "`precompiled status` shows the reason"),
    StateWord("unused", "no helper runs for the remote or the farm"),
)
STATE_WORDS = {word.state: word for word in _ALL}


def find_state(text: str) -> StateWord | None:
    """The state that a text names, such as ``in process`` or ``compiled-in-process``. Returns None for other texts."""
    return STATE_WORDS.get(text.lower().replace("-", " ").replace("_", " ").removeprefix("compiled "))
