"""Every stable reason code: what it means, what becomes of the graph, and what can be done about it.

``outcome`` tells the client what to do, ``precompiled explain CODE`` shows a row, and ``python tools/reasons_page.py``
makes docs/reference/reasons.md from the table. Codes are written out where they are raised, too;
tests/core/test_reasons.py compares.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import partial

from precompiled.core import words


class Kind(Enum):
    """Where a code turns up; the values are the headings of docs/reference/reasons.md."""

    BYPASS = "Bypass: this graph is not sent to the daemon (in process)"
    FAILURE = "Failure records: the worker could not make an artifact"
    STORE = "Fallback: the store"
    DAEMON = "Fallback: the daemon"
    COMMAND = "Commands and the start of the daemon"
    WATCH = "Watch mode"
    WORKER = "Why a worker ended"
    REMOTE = "The remote: without it all goes on as on one host"
    FARM = "The farm: without it all is compiled on this host"
    PACKAGE = "Packages: this frame is traced as usual"
    PACKAGE_FILE = "Package files (`save_package`, `load_package`: PackageError)"


class Outcome(Enum):
    """What becomes of a graph."""

    IN_PROCESS = "in process"  # compiled in the client, as plain torch.compile would have done it
    EAGER = "eager"  # not compiled in this process
    AGAIN = "again"  # compiled or submitted anew


@dataclass(frozen=True)
class Reason:
    """One code. The texts are Markdown for docs/reference/reasons.md, with links that are relative to docs/."""

    kind: Kind
    outcome: Outcome | None  # None: no graph depends on it
    code: str
    meaning: str
    advice: str = ""
    then: str = ""  # text that follows the outcome
    running: Outcome | None = None  # the outcome of a graph that runs eager already, and may, where it differs

    @property
    def plain_advice(self) -> str:
        return plain(self.advice)

    @property
    def follows(self) -> str:
        """The outcome in words; "" where there is none."""
        if self.outcome is None:
            return self.then
        if self.running is None:
            return self.outcome.value + self.then
        return f"{self.running.value} where the graph runs already, else {self.outcome.value}{self.then}"


def plain(text: str) -> str:
    """Markdown of the table as plain text, with links as paths in this project's sources."""
    return re.sub(r"\[[^]]*\]\(([^)]*)\)", r"see docs/\1", text)


def outcome(code: str, *, runs: bool) -> Outcome:
    """What becomes of a graph that gets no artifact for ``code``, which may be a code of another version.

    ``runs``: the graph runs eager already, and may. False for graphs that must not mix eager and compiled runs.
    """
    reason = REASONS.get(code)
    if reason is None:
        return Outcome.IN_PROCESS
    return (reason.running if runs else None) or reason.outcome or Outcome.IN_PROCESS


_IN_PROCESS, _EAGER, _AGAIN = Outcome.IN_PROCESS, Outcome.EAGER, Outcome.AGAIN
_bypass = partial(Reason, Kind.BYPASS, _IN_PROCESS)
_failure = partial(Reason, Kind.FAILURE)
_store = partial(Reason, Kind.STORE)
_daemon = partial(Reason, Kind.DAEMON)
_command = partial(Reason, Kind.COMMAND, None)
_watch = partial(Reason, Kind.WATCH, None)
_worker = partial(Reason, Kind.WORKER, None)
_remote = partial(Reason, Kind.REMOTE, None)
_farm = partial(Reason, Kind.FARM, None)
_package = partial(Reason, Kind.PACKAGE, None)
_package_file = partial(Reason, Kind.PACKAGE_FILE, None)

# Each text must be understood alone: `explain` shows one row.
_TABLE = (
    _bypass("caches-disabled", "Inductor's caches are off (`force_disable_caches`), and an artifact is one",
        "leave the caches on"),
    _bypass("no-stand-in",
        "the graph must not run eager (collectives, whose ranks must not mix eager and compiled runs; "
        "`flex_attention`): it waited for its artifact, and there is none by `wait_s`",
        "see why there is none: `precompiled show KEY`"),
    _bypass("ahead-of-time",
        "torch writes down what is compiled here (`torch.compile(...).aot_compile`, `caching_precompile`, "
        "AOTInductor): the result is torch's own, and its calls are not counted",
        "nothing: torch's file is the artifact"),
    _bypass("checkpoint-context",
        "selective activation checkpointing whose policy a worker cannot import: a function in the program itself or "
        "inside of another one", "move it to the top level of a module"),
    _bypass("collective",
        "a collective that does not name its group, or not a functional one (`torch.ops.c10d`); or an artifact that "
        "names its groups in an unknown way",
        "use `torch.distributed._functional_collectives`, as torch's own layers do"),
    _bypass("cpp-wrapper",
        "`cpp_wrapper` on a GPU, whose code names files that an artifact does not hold, or of collectives, whose code "
        "names groups of this process",
        "leave it off"),
    _bypass("custom-op",
        "a custom op of which nobody can tell what a worker must load for it: Python has made it without a fake kernel "
        "(by `torch.library.Library` alone), torch does not say which library has registered it (`RegisterOperators`, "
        "a library that is not loaded from a file), or what Python registers for it; or it has several overloads, or "
        "is autotuned (`register_custom_op_autotuning`)",
        "in C++ use `TORCH_LIBRARY`; in Python register its fake kernel with `torch.library.register_fake`, in a "
        "module"),
    _bypass("custom-op-edited",
        "a source or a library that a worker would load (of a custom op, a tensor subclass, a checkpoint's policy) was "
        "saved after the process started, so what is loaded may be older", "none: the next run is served"),
    _bypass("custom-op-in-main", "a custom op that the program itself defines, and that no source says whole: a rule "
        "of it reads more than code and constants (a closure, an object, a list, the environment), or it has tags, "
        "effects, a library's kernels, a rule for autocast", "move it to a module"),
    _bypass("custom-pass",
        "an Inductor pass (or another setting) that is code of yours, that no import leads to (of the program itself, "
        "in a function), and that no source says whole: a lambda, or it reads a list, a table, an object or the "
        "environment; or an object with slots", "define it at the top level of a module"),
    _bypass("device-index",
        "the graph runs on `cuda:1` or higher, and names it by a number alone, `x.to(1)`; or its artifact names "
        "`cuda:0` in a way that cannot be moved ([how artifacts move](../decisions/0035-artifacts-for-any-index.md))",
        "write `torch.device(\"cuda\", index)`, or give each process its GPU with `CUDA_VISIBLE_DEVICES`"),
    _bypass("dtensor-state",
        "DTensors with sharding rules or handlers of your own (`register_sharding`), under "
        "`ExplicitRedistributionContext`, or with `compile_on_one_rank`: a worker has none of it", "nothing yet"),
    _bypass("exported-graph", "a graph of `torch.export`, which takes other arguments than its placeholders",
        "compile the original module"),
    _bypass("freezing",
        "Inductor's freezing ([how it is served](../decisions/0025-frozen-weights-by-content.md)) on a GPU, with "
        "`freezing_discard_parameters`, of weights that are no plain tensors, or of more bytes than `max_graph_bytes`",
        "leave `freezing` or `freezing_discard_parameters` off, or raise `max_graph_bytes`"),
    _bypass("fx-wrapper", "`fx_wrapper` has no code to keep: what it makes is an object of the process",
        "leave it off"),
    _bypass("graph-attribute",
        "the graph holds a tensor of which Dynamo says nothing, a script object or a part of a model, instead of "
        "taking it as an input. What a compiled `optimizer.step()` works on is served",
        "give it to the function as an argument"),
    _bypass("higher-order-operator", "an operator with effects, or of a user's own", "nothing yet"),
    _bypass("lookup-only", "no artifact, and the mode is `lookup`", "run once in another mode"),
    _bypass("marked-node",
        "an operation with a mark that cannot be sent (recomputation tags, hooks, compiled autograd's `steal_arg`), "
        "several streams or their events, or a graph on a GPU for which `torch._dynamo.override_cudagraphs` asks for "
        "other CUDA graphs than the settings",
        "nothing yet"),
    _bypass("direct-call",
        "Inductor was called by name (`torch._inductor.compile`, `standalone_compile`, a backend of yours that calls "
        "`compile_fx`, `maybe_enable_compiled_autograd`), and not by `torch.compile`: the result is torch's own, and "
        "its calls are not counted. No error with `require`", "`torch.compile` without such a backend"),
    _bypass("double-backward", "compiled autograd captured a backward that is to be differentiated itself",
        "nothing: torch does not compile it either"),
    _bypass("mesh",
        "a device mesh of the graph's DTensors that a worker cannot stand in for: without this rank or without groups, "
        "with ranks in another order than their groups have them, of several dimensions that are flattened elsewhere, "
        "or of a torch whose meshes are not known", "the message says which"),
    _bypass("rank-dependent",
        "a graph with collectives under a setting of Inductor's that lets ranks agree while they compile (overlap "
        "scheduling, aligned estimates; the message names it), or a pass that asked a worker for a rank that is not "
        "in the key (a failure record: in process as well). Bucketed and reordered collectives are served. "
        "`_sync_cache_decision_cross_ranks` keeps all graphs",
        "leave the setting off, where one artifact for all ranks is worth more"),
    _bypass("runtime-assertion",
        "the graph asserts something of a value that only a run knows (`torch._check(x.item() == ...)`), in a form, "
        "or of values, that it cannot be sent with", "nothing yet"),
    _bypass("saved-tensors-hooks", "saved-tensor hooks that are graph modules, which torch compiles into the graph",
        "hooks that are plain functions are served"),
    _bypass("several-devices", "the graph uses more than one accelerator", "nothing: split it, one device each"),
    _bypass("symbolic-scalar", "a bool, or a computed float, that Dynamo treats as symbolic is an input",
        "`mark_dynamic` the sizes that change, rather than `dynamic=True`"),
    _bypass("unpicklable-option", "a setting of Inductor's or functorch's is no plain value",
        "use plain values in `options=`"),
    _bypass("unsupported-argument", "an operation has an argument of a type that has no canonical form",
        "pass plain Python values"),
    _bypass("unsupported-device", "neither CPU nor CUDA", "nothing yet"),
    _bypass("unsupported-input",
        "an input is sparse, quantized, nested, a lazy conjugate, or a tensor subclass that a worker cannot rebuild: "
        "a DTensor on torch 2.11, or of a tensor that is still being gathered; one that no import leads to (of the "
        "program itself, in a function), and that no source says whole (its methods read a list, a table, an object or "
        "the environment, or are decorated; it has a metaclass; operators or pytree know it); two classes of one "
        "source",
        "pass plain tensors (`.resolve_conj()`); move the class to the top level of a module"),
    _bypass("unsupported-node", "a kind of node that Dynamo's graphs do not have", "report it"),
    _bypass("unsupported-size", "a symbolic size of a form that has no canonical form", "`mark_dynamic` fewer sizes"),
    _bypass("vllm-context",
        "a piece of vLLM's graph whose passes a worker cannot make again: they are more than vLLM's configuration "
        "says, or read a part of it that is not sent (the message names it); or Inductor is to cut the graph "
        "(`use_inductor_graph_partition`)",
        "leave the pass off, where what is compiled once is worth more"),
    _bypass("user-kernel",
        "a Triton kernel that no import leads to (of the program itself, in a function), and that no source says whole "
        "(it has a closure, or reads more than kernels, constants and modules); or an argument or setting of one that "
        "is no plain value",
        "move it to the top level of a module"),
    _bypass("operator-override",
        "the program has given one of torch's operators another meaning, in torch's dispatcher (`torch.library`, for "
        "another key than a device's, whose kernels only run) or in Inductor's tables (`register_decomposition`, "
        "`register_lowering`, `make_fallback`, `register_custom_op_autotuning`): a worker has torch's own",
        "a custom op of a name of your own, in a module; or register it when nothing is compiled any more"),
    _bypass("user-function",
        "the graph calls a function that is not torch's (also one that was patched into torch's namespace, or an "
        "operator of `torch.Tensor` such as `__matmul__`)",
        "let Dynamo trace into it, rather than `torch._dynamo.allow_in_graph` it"),

    _failure(_IN_PROCESS, "compile-error", "torch raised in the worker; the message has its traceback",
        "See the log",
        then=", where torch raises the same as without us ([why](../decisions/0018-torchs-errors-are-raised.md)), or "
        "compiles it: then it is `worker-only-error`. Eager only where neither can be said"),
    _failure(_IN_PROCESS, "no-compiler",
        "this host builds no kernels: no working C++ compiler, no Python headers, no `ptxas`; no failure is recorded "
        "for the graph, and artifacts that the store has are used all the same",
        "Install g++ and Python's headers (Debian: `apt install g++ python3-dev`), or set `CXX`; `precompiled doctor` "
        "checks both", running=_EAGER),
    _failure(_IN_PROCESS, "worker-only-error",
        "a `compile-error` of a worker that this process does not have: a full disk there, or something that the "
        "program does before it compiles (counted beside `compile-error`)",
        "The message has the worker's traceback. What comes from the host itself counts for a minute"),
    _failure(_IN_PROCESS, "aliased-mutation", "an input that is changed shares its memory with another"),
    _failure(_IN_PROCESS, "aotautograd-guards", "AOTAutograd added guards on its inputs that an artifact cannot carry"),
    _failure(_IN_PROCESS, "fixed-float",
        "a float argument that Dynamo passes as a symbol: what was compiled would hold for one value of it only",
        then=": Dynamo traces the function again, with the value as a constant, and that graph is served"),
    _failure(_IN_PROCESS, "size-guards",
        "what was compiled holds under guards that the graph's size inputs do not tell, or that cannot be evaluated "
        "on them; or a graph that is compiled ahead of its calls (a piece of vLLM's) holds for some sizes only"),
    _failure(_IN_PROCESS, "environment-differs",
        "the worker is not what the client is (another torch, compiler, CPU or variable); the message has both",
        "Start clients and daemon from one virtual environment, or report which fact should not count"),
    _failure(_IN_PROCESS, "made-up-device",
        "the worker's GPU is a [made-up one](../explanation/made-up-cuda.md), and the compile asked it for a "
        "time, or to run a kernel",
        "Compile it where the GPU is"),
    _failure(_IN_PROCESS, "hidden-cpu-kernels",
        "the compile of a graph that has values on a GPU alone made kernels for the CPU (a backward that a custom op "
        "computes there): its key says nothing of the CPU",
        "Compute it on the GPU"),
    _failure(_IN_PROCESS, "not-serializable", "torch's result cannot be kept, or not pickled"),
    _failure(_IN_PROCESS, "undecodable-graph",
        "the graph's bytes do not decode in the worker, or an operator of yours has other kernels there",
        "A registration that one process alone has, two versions of precompiled in one virtual environment, or a bug: "
        "report it"),

    _store(_IN_PROCESS, "store-untrusted", "somebody else could have written to the store, or to this artifact",
        "The message names the path, its owner or mode, and the `chmod` or `chown`",
        then="; nothing of it is loaded"),
    _store(_IN_PROCESS, "store-unreadable", "the file system refuses to read the store",
        "Make it readable, or set `PRECOMPILED_CACHE_DIR`"),
    _store(_IN_PROCESS, "store-unwritable",
        "a worker cannot write there, and no process can keep its run",
        "Space, modes, `PRECOMPILED_CACHE_DIR`"),
    _store(_AGAIN, "artifact-corrupt", "an artifact does not match its manifest (truncated, altered)",
        then="; the artifact is in `quarantine/` with the reason"),
    _store(_AGAIN, "artifact-format", "an artifact of another format version",
        then=", by this version; the other one's stays"),
    _store(_AGAIN, "artifact-unloadable", "an artifact's bytes are right, and torch cannot load it",
        "Report it with the message",
        then="; compiled in process after three"),
    _store(_AGAIN, "artifact-evicted", "an artifact was evicted between the lookup and the load",
        "Raise `cache_max_bytes` when that is frequent"),
    _store(None, "base-unusable",
        "something of a base store (or all of it) cannot be trusted, read or verified: the message names the path",
        "as the message says; the base itself is never changed",
        then="as if it were not there: looked for elsewhere, then compiled"),
    _store(_IN_PROCESS, "weights-changed",
        "with `freezing`, a weight was changed after the first call and before its artifact was there: what was "
        "compiled holds for the weights as they were",
        "Load the weights before the first call", then=", without freezing"),
    _store(_IN_PROCESS, "too-many-variants", "all variants of a key are taken (guards on sizes)",
        "`precompiled clear KEY`, or mark fewer sizes dynamic"),
    _store(None, "bad-key", "something that is no key was to become a file name", "a bug: report it"),

    _daemon(_IN_PROCESS, "no-daemon",
        "no daemon listens, and none can be started; or the daemon that had the graph was stopped, or hangs, and for a "
        "minute none has answered", "`precompiled doctor`"),
    _daemon(_IN_PROCESS, "no-place",
        "this user has no directory for the store: `HOME` is unset or not writable, as in a container with an "
        "arbitrary uid ([where things are](settings.md#where-things-are))",
        "Set `PRECOMPILED_CACHE_DIR` to a directory that this user can write to"),
    _daemon(None, "no-reply", "the daemon accepts connections and does not answer (commands only)",
        "look into its log, or restart it"),
    _daemon(_IN_PROCESS, "protocol-version", "client and daemon, or daemon and worker, are of different versions",
        "`precompiled restart`, or install the same version in both virtual environments"),
    _daemon(_IN_PROCESS, "bad-message", "the daemon could not read a message", "A bug: report it"),
    _daemon(_IN_PROCESS, "too-large", "a graph, message or file over its limit", "Raise `max_graph_bytes`"),
    _daemon(_IN_PROCESS, "not-permitted", "another user's daemon", "Unset `PRECOMPILED_RUNTIME_DIR`"),
    _daemon(_IN_PROCESS, "compile-failed",
        "the worker could not make an artifact, nor a failure record (an error of ours); the message has "
        "why", then="; see the message"),
    _daemon(_IN_PROCESS, "device-lost",
        "the worker's GPU was lost, or an error of CUDA's has made it useless to that worker, which ends; nothing is "
        "kept about the graph",
        "The message has CUDA's words; `dmesg` and `nvidia-smi` may know more", running=_EAGER),
    _daemon(_IN_PROCESS, "gpu-unavailable",
        "the worker found too little memory on the GPU, or none for a context of its own, as in exclusive-process "
        "mode; nothing is kept about the graph",
        "Leave room there, compile before the program fills it (`precompiled.wait()`), or "
        "[without the GPU](../guides/targets.md#compiles-without-the-gpu)"),
    _daemon(_IN_PROCESS, "no-made-up-gpu",
        "`compile_without_gpu` is on, and no GPU can be made up here: no CUDA build of torch, no compiler, no headers",
        "The message says what to install; or switch it off"),
    _daemon(_IN_PROCESS, "worker-error",
        "the worker's own code raised; in the daemon's log (clients are told `compile-failed`, with the traceback)",
        "A bug: report it"),
    _daemon(_IN_PROCESS, "no-such-device", "the daemon's host has no GPU of that UUID", "`precompiled doctor`"),
    _daemon(_EAGER, "key-quarantined", "the graph killed two workers, or ran out of time",
        "The worker's last words are in the message; `job_timeout_s`, `job_memory_bytes`", then=", for an hour"),
    _daemon(_IN_PROCESS, "job-cancelled", "its compile was cancelled, by `precompiled cancel` or in `top`",
        "Nothing: a process that is started later asks for it again", running=_EAGER),
    _daemon(_IN_PROCESS, "worker-cannot-start", "the client's interpreter does not start a worker (twice)",
        "The last words are in the message", then="; tried again after a minute"),
    _daemon(None, "not-in-time",
        "with `require`, a graph for which there was no artifact by `wait_s`",
        "Compile before you require it (a run without `require`, then `precompiled.wait()`); raise `wait_s`; "
        "`precompiled status` says what the daemon is busy with", then="an error, since nothing may run eager"),
    _daemon(None, "stand-in-raised",
        "an eager run of a graph raised where its compiled code does not: an operator that has no eager kernel for a "
        "type, a check that eager alone makes, more memory than there is",
        then="the call waits for the artifact, and from then on the graph does not run eager"),
    _daemon(_AGAIN, "busy", "the queue is full", then=", later (counted in `rejected`, not told)"),
    _daemon(_AGAIN, "stopping", "the daemon is leaving", then=", to the next one"),
    _daemon(_IN_PROCESS, "submit-failed",
        "a graph could not be handed to the connection (no descriptors or threads are left)",
        "Look at the process's limits", running=_EAGER),
    _daemon(_IN_PROCESS, "swap-thread", "the thread that awaits artifacts broke down",
        "A bug: report it, with `PRECOMPILED_LOG=info`"),
    _daemon(_IN_PROCESS, "swap-transition", "a graph was driven along a transition that does not exist",
        "A bug: report it with the story in the message"),
    _daemon(_IN_PROCESS, "internal-error", "something unexpected in the client",
        "A bug: report it with the traceback (`PRECOMPILED_LOG=info`)"),
    _daemon(None, "unsupported-torch", "this torch is outside of the supported range",
        then="nothing is routed; `torch.compile` is torch's own"),
    _daemon(None, "other", "further reasons, when one user has more than 200 different ones (in `stats` only)",
        "see `report()`"),

    _command("bad-config", "a setting cannot be used; the message says where it came from",
        "correct it; `precompiled config`"),
    _command("socket-path-too-long", "a Unix socket's path may have 107 bytes", "a shorter `PRECOMPILED_RUNTIME_DIR`"),
    _command("hook", "the hook cannot be installed in this process or interpreter", "`precompiled doctor`"),
    _command("not-writable", "site-packages cannot be written",
        "`precompiled enable --user`, or a virtual environment"),
    _command("no-user-site", "this interpreter has no user site-packages", "`precompiled enable` without `--user`"),
    _command("unreadable", "what the store has of a graph cannot be read", "the message says why"),
    _command("not-removed", "what the store has of a graph cannot be removed", "the message says why"),
    _command("no-such-key", "no artifact or record has that key", "`precompiled ls`"),
    _command("no-such-run", "no run of that name is kept: the last 64 are", "the message has the last ones"),
    _command("no-such-function", "no function of that name has a package",
        "`precompiled ls`; the message has a name that ends like it"),
    _command("ambiguous-key", "several keys begin so", "more digits"),
    _command("graph-not-kept",
        "the store does not keep the graph (of a failure record of a very large one, or of bytes that were none): "
        "`explain` has nothing to compare", "`precompiled show KEY` has the rest"),
    _command("stop-timed-out", "the daemon still answers", "its log; `kill`"),
    _command("start-timed-out", "no answer from a started daemon in time", "its log, in the runtime directory"),
    _command("start-failed", "a daemon could not be started; its last words are in the message",
        "`precompiled serve` shows them all"),
    _command("already-running", "another daemon holds the lock of this runtime directory", "use it, or stop it"),
    _command("not-root", "`--system` needs root", "leave it out"),
    _command("lock", "the lock file cannot be opened", "modes of the runtime directory"),
    _command("bind", "the socket cannot be bound", "`precompiled doctor`"),
    _command("runtime-dir", "the runtime directory cannot be made or used", "`PRECOMPILED_RUNTIME_DIR`"),
    _command("runtime-dir-untrusted", "the runtime directory belongs to somebody else, or others may write to it",
        "remove it, or choose another"),
    _command("bad-public-key", "a text is no public key, or no id of one",
        "give the line that `precompiled keys new` printed"),
    _command("key-exists", "this user has a key already", "move it away for a new one"),
    _command("bake-command-failed", "the command that was to be baked failed", "see its own message"),
    _command("bake-empty", "the command that was to be baked compiled nothing",
        "its Python needs precompiled and a call of `torch.compile`"),
    _command("no-such-job", "no job of that key is queued or running, or nothing of it failed (`retry`)",
        "`precompiled top` shows keys"),
    _command("output-unwritable", "`trace`, `timeline` or `metrics` cannot write its file", "name another file"),
    _command("listen", "`metrics` cannot listen where it was told to", "give another port or path"),
    _command("metrics-unavailable", "`metrics` needs prometheus-client, which is not in this environment",
        words.install("metrics")),
    _command("bake-target", "a base store cannot be written to the directory that was given",
        "give one that is not there yet, in a directory that you can write to"),
    _command("unknown-target", "`--target` names no kind of GPU, or an architecture that several kinds have",
        "the message has the list"),
    _command("target-unavailable", "no GPU can be made up here: no CUDA build of torch, no compiler, no headers",
        "the message says what to install; no GPU and no driver is needed"),
    _command("gpu-use-unknown", "`tune --when-idle` cannot ask how much the GPU is used",
        "tune without it, while nothing uses the GPU"),
    _command("cache-dir", "the system daemon's cache directory cannot be made", "modes of its parent"),
    _command("scheduler", "the scheduler was driven along a transition that does not exist",
        "a bug: report it, with the story in the daemon's log"),

    _watch("watch-needs-own-daemon", "the daemon serves all users, and would have to run your code",
        "directories of your own, as the message says ([watch.md](../guides/watch.md))"),
    _watch("nothing-to-watch", "no entry point and no command was named, and nothing is registered",
        "`precompiled watch pkg.module:factory`"),
    _watch("entry-point", "the target names no factory, or the factory returns something else than pairs",
        "the message says which"),
    _watch("command-not-found", "the command to be watched is not on `PATH`", "its spelling"),
    _watch("no-last-run", "no run has used the hook yet, or its note cannot be read or trusted", "run it once"),
    _watch("no-such-watch", "nothing is registered under that name or id", "`precompiled watch --list`"),
    _watch("too-many-watches", "64 are registered", "remove some"),
    _watch("bad-registration", "no capture can begin so: an empty command, for instance, or a relative path",
        "register it anew; the message says what is wrong"),
    _watch("watch-not-saved", "the registration cannot be written below the cache directory", "`precompiled doctor`"),
    _watch("no-watcher", "the watcher cannot be started, or ended while it was asked", "the daemon's log"),
    _watch("cancelled", "a watch has newer sources, and nobody else wanted the graph",
        "nothing: its next capture has asked for the new one"),
    _watch("not-accepted", "the queue was full for all of a capture's last minute", "save again later; `max_queue`"),

    _worker("idle", "nothing to do for `worker_idle_s`"),
    _worker("evicted", "a job of another user, interpreter or device needed its place"),
    _worker("recycled", "it has done 200 jobs; another one takes its place when there is work"),
    _worker("shut-down", "the daemon is leaving"),
    _worker("died", "it ended by itself, or something killed it (the kernel, for memory)"),
    _worker("memory", "its process tree was over `job_memory_bytes` or had 1,000 processes; or all were too much"),
    _worker("displaced", "another user's job had waited for a place"),
    _worker("timeout", "its job was over `job_timeout_s`"),
    _worker("start-timeout", "it did not say that it is ready in time"),
    _worker("cannot-start", "it could not be executed, or pinned to its device"),
    _worker("host-full", "no process, memory or descriptor was left to start it with; it is tried again"),
    _worker("protocol", "it sent something that it should not"),
    _worker("no-exit", "it was asked to leave, and did not"),

    _remote("remote-unreachable", "the remote refuses, or cannot be reached: the message says what its library said",
        "its address, credentials, state", then="after three in a row it is left alone for half a minute"),
    _remote("remote-timeout", "the remote did not answer in time", "`remote_timeout_s`; how far it is, and how busy",
        then="as `remote-unreachable`"),
    _remote("remote-unusable",
        "the remote cannot be used as it is set up: a URL that nothing here opens, a helper that cannot be started, "
        "nobody whom this host believes", "as the message says"),
    _remote("remote-unsigned", "an object in the remote is not signed, and this host believes signed ones only",
        "put it there from a host that has a key (`precompiled keys new`)", then="nothing of it is read"),
    _remote("remote-untrusted",
        "an object in the remote is signed by a key that this host does not believe, or its signature is none of that "
        "key's",
        "`precompiled keys trust` on this host, if you would run that host's code", then="nothing of it is read"),
    _remote("remote-corrupt", "an object in the remote is not whole, altered, or not what its name says",
        "remove it there where it comes again",
        then="nothing of it is used; its graph is compiled here, and put beside"),

    _farm("farm-unusable",
        "the farm cannot be used as it is set up: no Ray here, no cluster at its address, no node that offers to "
        "compile, a helper that cannot be started", "as the message says: [farm.md](../guides/farm.md)",
        then="it is tried again after half a minute"),
    _farm("farm-environment",
        "a node is not as this host is (precompiled, Python, torch, compiler, CPU), or cannot run a worker: the "
        "message says in what", "the same image, or the same virtual environment, on nodes and hosts",
        then="a worker here compiles the graph"),
    _farm("farm-failed", "a node could not compile the graph; the message has the worker's own code",
        "see what a worker here makes of it: `precompiled show KEY`", then="a worker here tries"),
    _farm("farm-lost",
        "a node, its worker or the cluster was lost more often than Ray tries again, or took longer than "
        "`job_timeout_s`", "`helper.log`, and Ray's own logs", then="a worker here compiles the graph"),
    _farm("farm-corrupt", "what came back from a node is not whole, or is of another graph",
        "look at the node that the message names",
        then="nothing of it is used; a worker here compiles the graph"),

    _package("package-assumed-constant",
        "a function under `assume_constant_result` cannot be asked again: no name leads to it, or it takes objects",
        "move it to the top level of a module"),
    _package("package-audit",
        "a sample of hits is traced all the same, and a trace gave something else than the package; the function's "
        "packages are out of use in this store, and `precompiled ls` names it",
        "report it, with the function's source; `precompiled clear` puts them into use again"),
    _package("package-corrupt", "an entry or a package file does not match its digests; an entry is quarantined",
        "save the file again"),
    _package("package-format", "an entry or a file of another version of precompiled", "save the file again"),
    _package("package-global",
        "Dynamo put something into the globals that has no name in another process (a random number's function, the "
        "globals of code made by `exec` to which no input and no global leads)", "nothing yet"),
    _package("package-graph",
        "a graph of the frame was compiled in this process, or has cudagraphs or frozen weights",
        "what that graph's own reason says, where it has one"),
    _package("package-guard", "a guard of a kind for which no check stands", "nothing yet"),
    _package("package-id",
        "code of yours asks for `id()` or `hash()`, numbers of one process, for a tensor's storage, or for a text "
        "with an address in it (`str()` of a function)", "compare with `is`, or by value"),
    _package("package-inlined", "code was inlined that no name leads to (a class made by `exec`)",
        "define it in a module"),
    _package("package-internal-error", "a bug of ours", "report it, with the log"),
    _package("package-device-numbers",
        "the code asks the GPU for its memory, cache or clocks, which a trace takes for constants: GPUs of one name "
        "differ in them, and those of a [GPU that is not here](../guides/targets.md) are a data sheet's",
        "ask outside of what is compiled"),
    _package("package-mode",
        "traced under a torch function mode, a functorch transform, `torch.export`, or "
        "`torch._dynamo.config.compiled_autograd`", "nothing yet"),
    _package("package-native-call",
        "Dynamo called a function of yours to compute a value (of an enum or a metaclass, for example), and what that "
        "function reads cannot be compared in another process; the message names the function and what it reads",
        "compute the value before the compiled function, and pass it as an argument"),
    _package("package-not-portable",
        "an object that is known by its identity only (a lock, an object of a C extension); the message names the "
        "guard", "give it plain attributes, or compare by value"),
    _package("package-off", "packages are used here (`load_package`), but not recorded",
        "`PRECOMPILED_PACKAGES=program`, the default"),
    _package("package-passing",
        "a frame was left alone while errors are suppressed or Dynamo is debugged (`suppress_errors`, "
        "`TORCHDYNAMO_DEBUG_FUNCTION`): for this once, perhaps", "nothing: the next run traces it"),
    _package("package-profiler",
        "Dynamo may have called functions of yours while it traced, and a profiler or debugger kept precompiled from "
        "noticing the calls (`sys.setprofile`; on CPython 3.12 and later, if it takes the free tools of "
        "`sys.monitoring`)", "run the program once without it"),
    _package("package-program",
        "nobody can tell whether the next process runs the same program: it is typed, or the message names a source "
        "file that was saved since this process started, or is gone",
        "nothing: the next process has what was saved. Where it is typed: `PRECOMPILED_PACKAGES=function`"),
    _package("package-set-order",
        "code of yours goes through a set of texts, whose order is another one in each process, or changes a set",
        "a tuple, or `sorted()`"),
    _package("package-too-large", "an entry that readers would not accept", "nothing yet"),
    _package("package-unsupported", "this torch lacks what packages need; everything else works", "another torch"),
    _package("package-unwritable", "the store, or the file, cannot be written: the message names the place",
        "free some space, or save it elsewhere"),
    _package("artifact-program",
        "an artifact from a package file serves some sizes only, and does not say what it was compiled from, which "
        "would run at the others", "save the file again"),

    _package_file("package-artifact-missing", "one of its graphs is not compiled yet",
        "`precompiled.wait()`, then save"),
    _package_file("package-busy", "what was recorded is still being written", "try again"),
    _package_file("package-empty", "nothing of it was recorded",
        "call it with the hook on first; `precompiled.package_report()` says why a frame is not kept"),
    _package_file("package-environment", "another torch, Python, CPU, GPU or configuration: the message names it",
        "save it on a host of this kind"),
    _package_file("package-evicted", "an entry was removed from the store meanwhile",
        "`torch.compiler.reset()`, call it, so that it is recorded again, then save"),
    _package_file("package-function", "the file is for another function", "load it on that one"),
    _package_file("package-missing", "there is no such file", "give the file that `save_package` wrote"),
    _package_file("package-not-compiled", "the argument is not what `torch.compile()` returned, or has another backend",
        "give what `torch.compile()` returned, of inductor or precompiled"),
    _package_file("package-source",
        "the function, or something inlined in it, has another source by now: the message names it",
        "save it again; `check_source=False` if the change does not matter"),
    _package_file("package-untrusted", "others could have written the file, which is code",
        "`chmod go-w`, if you trust what it holds"),
)
REASONS = {reason.code: reason for reason in _TABLE}
