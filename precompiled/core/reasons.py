"""Lists every stable reason code: its meaning, what happens to the graph, and what the user can do.

``outcome`` tells the client what to do, ``precompiled explain CODE`` shows a row, and ``python tools/reasons_page.py``
makes docs/reference/reasons.md from the table. Codes are written out where they are raised, too;
tests/core/test_reasons.py compares.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from enum import Enum
from functools import partial

from precompiled.core import words


class ReasonKind(Enum):
    """Where a code occurs; the values are the headings of docs/reference/reasons.md."""

    BYPASS = "Bypass: this graph is not sent to the daemon (in process)"
    FAILURE = "Failure records: the worker could not make an artifact"
    STORE = "Fallback: the store"
    DAEMON = "Fallback: the daemon"
    COMMAND = "Commands and the start of the daemon"
    WATCH = "Watch mode"
    WORKER = "Why a worker ended"
    REMOTE = "The remote: if it fails, the host works alone"
    FARM = "The farm: if it fails, this host compiles all graphs"
    PACKAGE = "Packages: Dynamo traces this frame as usual"
    PACKAGE_FILE = "Package files (`save_package`, `load_package`: PackageError)"


class Outcome(Enum):
    """What happens to a graph."""

    IN_PROCESS = "in process"  # compiled in the client, as by plain torch.compile
    EAGER = "eager"  # not compiled in this process
    AGAIN = "again"  # compiled or submitted again


@dataclass(frozen=True)
class Reason:
    """One code. The texts are Markdown for docs/reference/reasons.md, with links that are relative to that page."""

    kind: ReasonKind
    outcome: Outcome | None  # None: no graph depends on it
    code: str
    meaning: str
    advice: str = ""
    then: str = ""  # text after the outcome
    running: Outcome | None = None  # the outcome of a graph that already runs eager, if it differs

    @property
    def plain_advice(self) -> str:
        return plain(self.advice)

    @property
    def follows(self) -> str:
        """The outcome in words; "" if there is none."""
        if self.outcome is None:
            return self.then
        if self.running is None:
            return self.outcome.value + self.then
        return f"a running graph stays {self.running.value}; otherwise {self.outcome.value}{self.then}"


def plain(text: str) -> str:
    """The table's Markdown as plain text; a link becomes its path from the top of this project's sources."""
    return re.sub(r"\[[^]]*\]\(([^)]*)\)", lambda link: f"see {posixpath.normpath(f'docs/reference/{link[1]}')}", text)


def outcome(code: str, *, runs: bool) -> Outcome:
    """Return what happens to a graph that has no artifact for the reason ``code``. Another version may have set it.

    ``runs``: the graph already runs eager. False for graphs that must not mix eager and compiled runs.
    """
    reason = REASONS.get(code)
    if reason is None:
        return Outcome.IN_PROCESS
    return (reason.running if runs else None) or reason.outcome or Outcome.IN_PROCESS


_IN_PROCESS, _EAGER, _AGAIN = Outcome.IN_PROCESS, Outcome.EAGER, Outcome.AGAIN
_bypass = partial(Reason, ReasonKind.BYPASS, _IN_PROCESS)
_failure = partial(Reason, ReasonKind.FAILURE)
_store = partial(Reason, ReasonKind.STORE)
_daemon = partial(Reason, ReasonKind.DAEMON)
_command = partial(Reason, ReasonKind.COMMAND, None)
_watch = partial(Reason, ReasonKind.WATCH, None)
_worker = partial(Reason, ReasonKind.WORKER, None)
_remote = partial(Reason, ReasonKind.REMOTE, None)
_farm = partial(Reason, ReasonKind.FARM, None)
_package = partial(Reason, ReasonKind.PACKAGE, None)
_package_file = partial(Reason, ReasonKind.PACKAGE_FILE, None)

# Each text must be understood alone: `explain` shows one row. A row of the page has at most 200 characters.
_TABLE = (
    _bypass("caches-disabled", "Inductor's caches are disabled (`force_disable_caches`)", "leave the caches on"),
    _bypass(
        "no-stand-in",
        "the graph must not run eager (collectives, `flex_attention`), and no artifact came within `wait_s`",
        "run `precompiled cache show KEY`",
    ),
    _bypass(
        "ahead-of-time",
        "torch writes the result to a file (`aot_compile`, `caching_precompile`, AOTInductor)",
        "nothing to do: torch loads its own file",
    ),
    _bypass(
        "checkpoint-context",
        "a selective checkpoint's policy is defined in the main program or in a function",
        "move the policy to the top level of a module",
    ),
    _bypass(
        "collective",
        "a collective names no group or is not functional, or an artifact cannot be adapted to your process groups",
        "use `torch.distributed._functional_collectives`",
    ),
    _bypass("cpp-wrapper", "`cpp_wrapper` is on, for a GPU or for collectives", "switch `cpp_wrapper` off"),
    _bypass(
        "custom-op",
        "a worker cannot load a custom op: no fake kernel, unknown library, several overloads, or autotuning",
        "in C++ use `TORCH_LIBRARY`; in Python use `register_fake`, in a module",
    ),
    _bypass(
        "custom-op-edited",
        "a source or library that a worker would load was saved after this process started",
        "nothing to do: the next run is served",
    ),
    _bypass(
        "custom-op-in-main",
        "a custom op of the main program reads objects, closures or the environment, or has tags or effects",
        "move the custom op to a module",
    ),
    _bypass(
        "custom-pass",
        "a pass or setting is a lambda, or a local function that reads objects or the environment",
        "move the function to the top level of a module",
    ),
    _bypass(
        "device-index",
        "`x.to(1)` names a GPU other than `cuda:0`, or the artifact works on `cuda:0` only "
        "([0035](../decisions/0035-artifacts-for-any-index.md))",
        'write `torch.device("cuda", index)`',
    ),
    _bypass(
        "dtensor-state",
        "DTensors have sharding rules of yours, `ExplicitRedistributionContext` or `compile_on_one_rank`",
        "no remedy yet",
    ),
    _bypass("exported-graph", "the graph comes from `torch.export`", "compile the original module"),
    _bypass(
        "freezing",
        "the frozen weights are on a GPU, discarded, of a subclass, or too large "
        "([0025](../decisions/0025-frozen-weights-by-content.md))",
        "switch `freezing` off, or raise `max_graph_bytes`",
    ),
    _bypass("fx-wrapper", "`fx_wrapper` is on, and its result cannot be stored", "switch `fx_wrapper` off"),
    _bypass(
        "graph-attribute",
        "the graph has a script object, a submodule, or a tensor whose origin Dynamo does not record",
        "pass the object as an argument",
    ),
    _bypass(
        "higher-order-operator",
        "the graph uses a higher-order operator that has effects or that you defined",
        "no remedy yet",
    ),
    _bypass("lookup-only", "the store has no artifact, and the mode is `lookup`", "run once in another mode"),
    _bypass(
        "marked-node",
        "a node has a tag, hook, `steal_arg` or `override_cudagraphs`, or the graph has several streams",
        "no remedy yet",
    ),
    _bypass(
        "direct-call",
        "the program called Inductor directly (`compile_fx`); with `require`, this is not an error",
        "call `torch.compile`",
    ),
    _bypass(
        "double-backward",
        "compiled autograd captured a backward that will itself be differentiated",
        "nothing to do: torch does not compile it either",
    ),
    _bypass(
        "mesh", "a device mesh does not contain this rank, is reordered, or has flattened dimensions", "see the message"
    ),
    _bypass(
        "rank-dependent",
        "ranks communicate during the compile (overlap scheduling), or a pass of yours reads the rank",
        "switch off the setting in the message",
    ),
    _bypass(
        "runtime-assertion",
        "a `torch._check` on a run-time value (`x.item() == ...`) has a form that cannot be sent",
        "no remedy yet",
    ),
    _bypass(
        "saved-tensors-hooks", "the hooks of `saved_tensors_hooks` are graph modules", "use plain functions as hooks"
    ),
    _bypass("several-devices", "the graph uses more than one accelerator", "compile one graph per device"),
    _bypass(
        "symbolic-scalar",
        "an input is a bool or a computed float that Dynamo treats as symbolic",
        "use `mark_dynamic` instead of `dynamic=True`",
    ),
    _bypass(
        "unpicklable-option",
        "a setting of Inductor or functorch is not a plain value",
        "use plain values in `options=`",
    ),
    _bypass(
        "unsupported-argument",
        "an operation's argument has a type that cannot be encoded",
        "pass plain Python values",
    ),
    _bypass("unsupported-device", "the graph runs on a device other than CPU and CUDA", "no remedy yet"),
    _bypass(
        "unsupported-input",
        "an input is sparse, quantized, nested or lazily conjugate, or of a class that a worker cannot rebuild",
        "pass plain tensors (`.resolve_conj()`), or move the class to a module",
    ),
    _bypass("unsupported-node", "the graph has a kind of node that Dynamo does not make", "report this bug"),
    _bypass(
        "unsupported-size", "a symbolic size has a form that cannot be encoded", "use `mark_dynamic` on fewer sizes"
    ),
    _bypass(
        "vllm-context",
        "a worker cannot recreate vLLM's passes, or `use_inductor_graph_partition` is on",
        "switch the pass or setting in the message off",
    ),
    _bypass(
        "user-kernel",
        "a Triton kernel of the main program has a closure, reads objects, or gets a special argument",
        "move the kernel to the top level of a module",
    ),
    _bypass(
        "operator-override",
        "the program replaced a torch operator that the graph may use",
        "define a custom op instead",
    ),
    _bypass(
        "user-function",
        "the graph calls a function that does not belong to torch, or a torch function that the program replaced",
        "do not use `allow_in_graph`",
    ),
    _failure(
        _IN_PROCESS,
        "compile-error",
        "torch failed in the worker; the message has its traceback",
        then=": the compile fails there too, or succeeds ([0018](../decisions/0018-torchs-errors-are-raised.md))",
    ),
    _failure(
        _IN_PROCESS,
        "no-compiler",
        "this host has no working C++ compiler, Python headers or `ptxas`",
        "Run `apt install g++ python3-dev`, or set `CXX`",
        running=_EAGER,
    ),
    _failure(
        _IN_PROCESS,
        "worker-only-error",
        "the compile failed in the worker, but succeeded in this process",
        "See the worker's traceback. If the host was the cause, the record expires after a minute",
    ),
    _failure(_IN_PROCESS, "aliased-mutation", "an input that the graph changes shares its memory with another input"),
    _failure(
        _IN_PROCESS,
        "aotautograd-guards",
        "AOTAutograd added guards on its inputs that an artifact cannot carry",
        then=": Dynamo traces the function again",
    ),
    _failure(
        _IN_PROCESS,
        "fixed-float",
        "the compile made a float argument a constant",
        then=": Dynamo traces the function again",
    ),
    _failure(
        _IN_PROCESS,
        "size-guards",
        "the artifact's guards depend on more than the input sizes, or a vLLM piece is valid for some sizes only",
        then=": Dynamo traces the function again",
    ),
    _failure(
        _IN_PROCESS,
        "environment-differs",
        "worker and client differ in torch, compiler, CPU or a variable",
        "Start clients and daemon from one virtual environment",
    ),
    _failure(
        _IN_PROCESS,
        "made-up-device",
        "the compile needs measured times, and the worker's GPU is made up ([details](../explanation/made-up-cuda.md))",
        "Compile beside the GPU",
    ),
    _failure(
        _IN_PROCESS,
        "hidden-cpu-kernels",
        "a graph with values only on a GPU has CPU kernels (a custom op's backward)",
        "Let the custom op compute on the GPU",
    ),
    _failure(_IN_PROCESS, "not-serializable", "torch's result cannot be stored or pickled"),
    _failure(
        _IN_PROCESS,
        "undecodable-graph",
        "the worker cannot decode the graph, or has different kernels for an operator",
        "Register operators in all processes; use one version of precompiled",
    ),
    _store(
        _IN_PROCESS,
        "store-untrusted",
        "another user could have written to the store, or to this artifact",
        "Run the `chmod` or `chown` in the message",
        then="; nothing is loaded from there",
    ),
    _store(
        _IN_PROCESS,
        "store-unreadable",
        "this process cannot read the store",
        "Make the store readable, or set `PRECOMPILED_CACHE_DIR`",
    ),
    _store(
        _IN_PROCESS,
        "store-unwritable",
        "a worker cannot write to the store; runs are not recorded",
        "Check free space and modes, or set `PRECOMPILED_CACHE_DIR`",
    ),
    _store(
        _AGAIN, "artifact-corrupt", "an artifact is truncated or altered", then="; the artifact moves to `quarantine/`"
    ),
    _store(
        _AGAIN,
        "artifact-format",
        "an artifact has the format of another version of precompiled",
        then=": this version compiles the graph",
    ),
    _store(
        _AGAIN,
        "artifact-unloadable",
        "an artifact is intact, but torch cannot load it",
        "Report this bug, with the message",
        then="; in process after three failures",
    ),
    _store(
        _AGAIN,
        "artifact-evicted",
        "an artifact was evicted between the lookup and the load",
        "Raise `cache_max_bytes` if this is frequent",
    ),
    _store(
        None,
        "base-unusable",
        "a base store, or a file in it, cannot be trusted, read or verified",
        "Follow the message",
        then="the lookup is a miss",
    ),
    _store(
        _IN_PROCESS,
        "weights-changed",
        "with `freezing`, a weight changed after the first call, before the artifact came",
        "Load the weights before the first call",
        then=", without freezing",
    ),
    _store(
        _IN_PROCESS,
        "too-many-variants",
        "all 16 variants of a key are in use (guards on sizes)",
        "Run `precompiled cache clear KEY`, or mark fewer sizes dynamic",
    ),
    _store(None, "bad-key", "an invalid string was used as a key", "Report this bug"),
    _daemon(
        _IN_PROCESS,
        "no-daemon",
        "no daemon listens and none can be started, or the daemon has not answered for a minute",
        "Run `precompiled doctor`",
    ),
    _daemon(
        _IN_PROCESS,
        "no-place",
        "`HOME` is unset or not writable, so the store has no directory ([settings](settings.md#where-things-are))",
        "Set `PRECOMPILED_CACHE_DIR` to a writable directory",
    ),
    _daemon(
        None,
        "no-reply",
        "the daemon accepts connections but does not answer (commands only)",
        "See the daemon's log, or restart the daemon",
    ),
    _daemon(
        _IN_PROCESS,
        "protocol-version",
        "client, daemon or worker have different versions",
        "Run `precompiled daemon restart`, or install one version in all environments",
    ),
    _daemon(_IN_PROCESS, "bad-message", "the daemon could not read a message", "Report this bug"),
    _daemon(_IN_PROCESS, "too-large", "a graph, message or file exceeds its limit", "Raise `max_graph_bytes`"),
    _daemon(_IN_PROCESS, "not-permitted", "the daemon belongs to another user", "Unset `PRECOMPILED_RUNTIME_DIR`"),
    _daemon(
        _IN_PROCESS,
        "compile-failed",
        "because of a bug, the worker made neither an artifact nor a failure record",
        "See the message",
    ),
    _daemon(
        _IN_PROCESS,
        "device-lost",
        "the worker's GPU was lost, or CUDA failed in the worker",
        "See the message, `dmesg` and `nvidia-smi`",
        running=_EAGER,
    ),
    _daemon(
        _IN_PROCESS,
        "gpu-unavailable",
        "the GPU lacks free memory, or is in exclusive-process mode",
        "Leave memory free, or [compile without the GPU](../guides/targets.md#compiles-without-the-gpu)",
    ),
    _daemon(
        _IN_PROCESS,
        "no-made-up-gpu",
        "`compile_without_gpu` is on, and torch's CUDA build, a compiler or headers are missing",
        "Install what the message says, or switch the setting off",
    ),
    _daemon(
        _IN_PROCESS,
        "worker-error",
        "precompiled's code in the worker raised an error; clients get `compile-failed`",
        "Report this bug, with the daemon's log",
    ),
    _daemon(_IN_PROCESS, "no-such-device", "the daemon's host has no GPU with that UUID", "Run `precompiled doctor`"),
    _daemon(
        _EAGER,
        "key-quarantined",
        "the graph killed two workers, or exceeded `job_timeout_s`",
        "Raise the exceeded limit, or run `daemon retry KEY`",
        then=" in this process; the daemon refuses the graph for an hour",
    ),
    _daemon(
        _IN_PROCESS,
        "job-cancelled",
        "the compile was cancelled (`daemon cancel`, `status --watch`)",
        "Nothing to do: a later process submits the graph again",
        running=_EAGER,
    ),
    _daemon(
        _IN_PROCESS,
        "worker-cannot-start",
        "the client's interpreter failed twice to start a worker",
        "Read the worker's last output in the message",
        then="; the daemon retries after a minute",
    ),
    _daemon(
        None,
        "not-in-time",
        "with `require`, a graph had no artifact within `wait_s`",
        "Run once without `require`, then call `precompiled.wait()`; or raise `wait_s`",
        then="the call raises an error",
    ),
    _daemon(
        None,
        "stand-in-raised",
        "an eager run raised an error that compiled code may not raise (too little memory)",
        then="all calls of the graph wait for the artifact",
    ),
    _daemon(
        _AGAIN,
        "busy",
        "the queue is full",
        then=": the client submits later, without a warning",
    ),
    _daemon(_AGAIN, "stopping", "the daemon is shutting down", then=": the client submits to the next daemon"),
    _daemon(
        _IN_PROCESS,
        "submit-failed",
        "the process has no descriptor or thread left to send the graph",
        "Raise the process's limits",
        running=_EAGER,
    ),
    _daemon(
        _IN_PROCESS,
        "swap-thread",
        "the thread that waits for artifacts failed",
        "Report this bug, with `PRECOMPILED_LOG=info`",
    ),
    _daemon(
        _IN_PROCESS,
        "swap-transition",
        "a graph got an event that its state does not allow",
        "Report this bug, with the message",
    ),
    _daemon(
        _IN_PROCESS,
        "internal-error",
        "an unexpected error occurred in the client",
        "Report this bug, with the traceback (`PRECOMPILED_LOG=info`)",
    ),
    _daemon(
        None,
        "unsupported-torch",
        "this torch is outside the supported range",
        then="`torch.compile` works without precompiled",
    ),
    _daemon(
        None,
        "other",
        "`cache stats` lists 200 reasons per user and sums up all further ones here",
        "See `precompiled.report()`",
    ),
    _command(
        "bad-config",
        "a setting has an invalid value",
        "correct the setting in the message",
    ),
    _command(
        "socket-path-too-long",
        "the path of a Unix socket is longer than 107 bytes",
        "set a shorter `PRECOMPILED_RUNTIME_DIR`",
    ),
    _command("hook", "the hook cannot be installed in this process or interpreter", "run `precompiled doctor`"),
    _command(
        "not-writable",
        "site-packages cannot be written",
        "run `precompiled enable --user`, or use a virtual environment",
    ),
    _command("no-user-site", "this interpreter has no user site-packages", "run `precompiled enable` without `--user`"),
    _command("unreadable", "a graph's files in the store cannot be read", "see the message"),
    _command("not-removed", "a graph's files in the store cannot be removed", "see the message"),
    _command(
        "no-such-key",
        "the store or the remote has no artifact or record with that key",
        "list keys with `precompiled cache ls`",
    ),
    _command("no-such-run", "no run with that name is among the last 64", "take a name from the message"),
    _command(
        "no-such-function", "no function with that name has a package", "list functions with `precompiled cache ls`"
    ),
    _command("ambiguous-key", "several keys begin with these digits", "give more digits"),
    _command(
        "graph-not-kept",
        "the store has no copy of the graph (perhaps too large)",
        "run `precompiled cache show KEY`",
    ),
    _command("stop-timed-out", "the daemon did not stop in time", "see the daemon's log; then `kill` the daemon"),
    _command(
        "start-timed-out", "a started daemon did not answer in time", "see the daemon's log, in the runtime directory"
    ),
    _command(
        "start-failed",
        "a daemon could not be started",
        "run `precompiled daemon serve` to see its output",
    ),
    _command(
        "other-settings",
        "the running daemon has other values for the settings in `--set`",
        "run `precompiled daemon restart --set NAME=VALUE`",
    ),
    _command("no-log", "no daemon has written a log yet", "start a daemon"),
    _command(
        "already-running", "another daemon holds the lock of this runtime directory", "use that daemon, or stop it"
    ),
    _command("not-root", "`--system` needs root", "leave `--system` out"),
    _command("lock", "the lock file cannot be opened", "check the modes of the runtime directory"),
    _command("bind", "the daemon cannot bind its socket", "run `precompiled doctor`"),
    _command("runtime-dir", "the runtime directory cannot be created or used", "set `PRECOMPILED_RUNTIME_DIR`"),
    _command(
        "runtime-dir-untrusted",
        "the runtime directory belongs to another user, or others can write to it",
        "remove the directory, or set another `PRECOMPILED_RUNTIME_DIR`",
    ),
    _command(
        "bad-public-key",
        "the argument is neither a public key nor the id of a key",
        "pass the line that `precompiled remote keys new` printed",
    ),
    _command("key-exists", "this user already has a key", "move the key's file away, then create a new key"),
    _command("bake-command-failed", "the command below `precompiled bake` failed", "see the command's output"),
    _command(
        "bake-empty",
        "the command below `precompiled bake` compiled nothing",
        "install precompiled in the command's Python, and call `torch.compile`",
    ),
    _command(
        "no-such-job",
        "no job with that key is queued or running, or, for `daemon retry`, has failed",
        "list keys with `precompiled status --watch`",
    ),
    _command(
        "output-unwritable", "`timeline`, `tools trace` or `tools metrics` cannot write its file", "name another file"
    ),
    _command("listen", "`tools metrics` cannot listen at the given address", "give another port or path"),
    _command(
        "metrics-unavailable",
        "`tools metrics` needs prometheus-client, which is not installed",
        words.install("metrics"),
    ),
    _command(
        "bake-target",
        "a base store cannot be written to the given directory",
        "name a new directory that you can write to",
    ),
    _command(
        "unknown-target",
        "`--target` is not a known kind of GPU, or is an architecture that several kinds have",
        "take a kind from the list in the message",
    ),
    _command(
        "target-unavailable",
        "this host lacks torch's CUDA build, a compiler or headers for `--target`",
        "install what the message says; no GPU or driver is needed",
    ),
    _command(
        "gpu-use-unknown",
        "`tools tune --when-idle` cannot find out how much the GPU is used",
        "run `tools tune` without `--when-idle`, while nothing uses the GPU",
    ),
    _command(
        "cache-dir", "the system daemon's cache directory cannot be created", "check the modes of the parent directory"
    ),
    _command(
        "scheduler",
        "the scheduler got an event that a job's or worker's state does not allow",
        "report this bug, with the daemon's log",
    ),
    _watch(
        "watch-needs-own-daemon",
        "the daemon serves all users, so it must not run your code",
        "set directories of your own, as in the message ([watch.md](../guides/watch.md))",
    ),
    _watch(
        "nothing-to-watch",
        "you named no entry point and no command, and nothing is registered",
        "run `precompiled watch pkg.module:factory`",
    ),
    _watch(
        "entry-point",
        "the target is not a factory, or the factory does not return pairs of a callable and inputs",
        "see the message",
    ),
    _watch("command-not-found", "the command to watch is not on `PATH`", "check its spelling"),
    _watch(
        "no-last-run",
        "no run has used the hook yet, or its record cannot be read",
        "run the program once",
    ),
    _watch(
        "no-such-module",
        "the module to watch cannot be found",
        "check the spelling, or use `watch --wait`",
    ),
    _watch("no-such-watch", "nothing is registered under that name or id", "run `precompiled watch --list`"),
    _watch("too-many-watches", "64 watches are registered already", "remove watches that you do not need"),
    _watch(
        "bad-registration",
        "a registration is invalid (an empty command, a relative path)",
        "register the watch again",
    ),
    _watch(
        "watch-not-saved", "the registration cannot be written below the cache directory", "run `precompiled doctor`"
    ),
    _watch("no-watcher", "the watcher cannot be started, or ended during a request", "see the daemon's log"),
    _watch(
        "cancelled",
        "the watched files changed again, and no other client waits for the graph",
        "nothing to do: the next capture submits the new graph",
    ),
    _watch(
        "not-accepted",
        "the queue was full during the last minute of a capture",
        "save again later, or raise `max_queue`",
    ),
    _worker("idle", "the worker had no job for `worker_idle_s`"),
    _worker("evicted", "a job of another user, interpreter or device needed the worker's place"),
    _worker("recycled", "the worker has done 200 jobs; the next job gets a new worker"),
    _worker("shut-down", "the daemon is shutting down"),
    _worker("died", "the worker ended by itself or was killed (when memory ran out, for example)"),
    _worker(
        "memory",
        "a worker exceeded `job_memory_bytes` or 1,000 processes, or all workers together used too much memory",
    ),
    _worker("displaced", "a job of another user had waited for a worker"),
    _worker("timeout", "the worker's job exceeded `job_timeout_s`"),
    _worker("start-timeout", "the worker did not become ready in time"),
    _worker("cannot-start", "the worker's interpreter could not be executed, or could not be pinned to its device"),
    _worker(
        "host-full",
        "the host could not start the worker (no process, memory or descriptor left); the daemon tries again",
    ),
    _worker("protocol", "the worker sent an invalid message"),
    _worker("no-exit", "the worker did not exit when the daemon requested it"),
    _remote(
        "remote-unreachable",
        "the remote refuses connections or cannot be reached",
        "Check the remote's address and credentials",
        then="after 3 failures in a row, the helper sends no requests for 30 s",
    ),
    _remote(
        "remote-timeout",
        "the remote did not answer in time",
        "Raise `remote_timeout_s`",
        then="as `remote-unreachable`",
    ),
    _remote(
        "remote-unusable",
        "fsspec does not know the URL, no helper runs, or this host trusts no key",
        "Follow the message",
    ),
    _remote(
        "remote-unsigned",
        "an object in the remote is not signed",
        "Upload it from a host with a key (`precompiled remote keys new`)",
        then="the object is ignored",
    ),
    _remote(
        "remote-untrusted",
        "an object has an invalid signature, or one by a key that this host does not trust",
        "If you trust its signer, run `precompiled remote keys trust`",
        then="the object is ignored",
    ),
    _remote(
        "remote-corrupt",
        "an object in the remote is incomplete or altered, or its content does not fit its name",
        "If this repeats, remove the object",
        then="ignored; this host compiles and uploads the graph",
    ),
    _farm(
        "farm-unusable",
        "Ray is not installed, the cluster or its nodes cannot be used, or no helper runs",
        "Follow the message ([farm.md](../guides/farm.md))",
        then="this host tries the farm again after 30 s",
    ),
    _farm(
        "farm-environment",
        "a node differs from this host (precompiled, Python, torch, compiler, CPU), or runs no worker",
        "Use one image on nodes and hosts",
        then="a local worker compiles the graph",
    ),
    _farm(
        "farm-failed",
        "a node could not compile the graph",
        "See `precompiled cache show KEY`",
        then="a local worker compiles the graph",
    ),
    _farm(
        "farm-lost",
        "a node, its worker or the cluster was lost repeatedly, or took longer than `job_timeout_s`",
        "See `helper.log` and Ray's logs",
        then="a local worker compiles the graph",
    ),
    _farm(
        "farm-corrupt",
        "a node's result is incomplete, or belongs to another graph",
        "Check the node in the message",
        then="the result is ignored; a local worker compiles the graph",
    ),
    _package(
        "package-assumed-constant",
        "a function under `assume_constant_result` has no name, or takes objects",
        "move the function to the top level of a module",
    ),
    _package(
        "package-audit",
        "an audit's trace differed from the package, so this store no longer uses the function's packages",
        "report this bug with your source; `cache clear` re-enables the packages",
    ),
    _package("package-corrupt", "an entry or a package file does not match its digests", "save the file again"),
    _package(
        "package-format",
        "an entry or package file has the format of another version of precompiled",
        "save the file again",
    ),
    _package("package-global", "the trace contains a global that other processes cannot name", "no remedy yet"),
    _package(
        "package-graph",
        "a graph of the frame was compiled in process, or has CUDA graphs or frozen weights",
        "see the graph's own reason",
    ),
    _package("package-guard", "a guard has a kind that cannot be checked in another process", "no remedy yet"),
    _package(
        "package-id",
        "your code uses `id()`, `hash()`, a tensor's storage, or a text with an address",
        "compare objects with `is`, or by value",
    ),
    _package(
        "package-inlined",
        "Dynamo inlined code that has no name, such as a class made by `exec`",
        "define the code in a module",
    ),
    _package("package-internal-error", "precompiled has a bug", "report this bug, with the log"),
    _package(
        "package-device-numbers",
        "the code reads the GPU's memory, cache or clocks",
        "read these numbers outside the compiled code",
    ),
    _package(
        "package-mode",
        "the trace ran under a torch function mode, a functorch transform, `torch.export` or `compiled_autograd`",
        "no remedy yet",
    ),
    _package(
        "package-native-call",
        "Dynamo called your function while it traced, and what this function reads cannot be compared",
        "pass the value as an argument",
    ),
    _package(
        "package-not-portable",
        "a guard is on an object without comparable state (a lock)",
        "give the object in the message plain attributes, or compare by value",
    ),
    _package(
        "package-off",
        "this process uses packages (`load_package`), but does not record them",
        "set `PRECOMPILED_PACKAGES=program`, the default",
    ),
    _package(
        "package-passing",
        "Dynamo skipped the frame for a reason that may not recur (`suppress_errors`, `TORCHDYNAMO_DEBUG_FUNCTION`)",
        "nothing to do: the next run traces the frame",
    ),
    _package(
        "package-profiler",
        "a profiler or debugger hid the functions that Dynamo called",
        "run the program once without it",
    ),
    _package(
        "package-program",
        "the program was typed at a prompt, or a source file changed after the program started",
        "at a prompt, set `PRECOMPILED_PACKAGES=function`; otherwise nothing to do",
    ),
    _package(
        "package-set-order",
        "your code changes a set, or iterates over a set of strings",
        "use a tuple, or `sorted()`",
    ),
    _package("package-too-large", "an entry is larger than readers accept", "no remedy yet"),
    _package(
        "package-unsupported",
        "this version of torch does not support packages",
        "use a supported version of torch",
    ),
    _package(
        "package-unwritable",
        "the store or the package file cannot be written",
        "free some space, or save the file elsewhere",
    ),
    _package(
        "artifact-program",
        "the package file lacks the graph for some sizes",
        "save the file again",
    ),
    _package_file(
        "package-artifact-missing",
        "a graph of the function is not compiled yet",
        "call `precompiled.wait()`, then save",
    ),
    _package_file("package-busy", "entries of the function are still being written", "try again"),
    _package_file(
        "package-empty",
        "the function has no recorded entries",
        "call the function with the hook on; see `precompiled.package_report()`",
    ),
    _package_file(
        "package-environment",
        "the file is for a different torch, Python, CPU, GPU or configuration",
        "save the file on a host like this",
    ),
    _package_file(
        "package-evicted",
        "an entry of the function was evicted from the store",
        "call `torch.compiler.reset()`, then the function, then save",
    ),
    _package_file("package-function", "the file is for a different function", "load the file into that function"),
    _package_file("package-missing", "the file does not exist", "pass the path of a file that `save_package` wrote"),
    _package_file(
        "package-not-compiled",
        "the argument does not come from `torch.compile()`, or has another backend",
        "pass what `torch.compile()` returned, with the backend inductor or precompiled",
    ),
    _package_file(
        "package-source",
        "the source of the function, or of inlined code, has changed",
        "save the package again, or pass `check_source=False`",
    ),
    _package_file(
        "package-untrusted",
        "other users could have written the file, and loading it would run its code",
        "if you trust the file, run `chmod go-w` on it",
    ),
)
REASONS = {reason.code: reason for reason in _TABLE}
