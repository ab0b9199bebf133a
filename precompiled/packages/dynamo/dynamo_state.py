"""Reads those parts of the process's state on which traces depend.

Process state, Dynamo's settings and modes have no guards. Dynamo's global guard checks all other state
(``global_state``).

Private names: torch._C._dynamo.guards.GlobalStateGuard, torch._C._len_torch_function_stack,
torch.utils._device.CURRENT_DEVICE, torch._functorch.pyfunctorch.retrieve_all_functorch_interpreters,
torch.autograd.forward_ad._current_level, torch.nn.modules.module._global_*_hooks, torch._dynamo.config,
torch._dynamo.trace_rules.{_allowed_callable_ids, _disallowed_callable_ids, _nonstrict_trace_callable_ids,
_leaf_function_ids}, torch._dynamo.utils.{_get_error_on_graph_break, maybe_disable_inference_mode},
torch._dynamo.eval_frame._stance, torch._dynamo.compiled_autograd.ops,
torch._inductor.runtime.cache_dir_utils.default_cache_dir. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any

import torch
import torch._dynamo.config
import torch._dynamo.trace_rules
import torch._functorch.pyfunctorch
import torch.utils._device
from torch._dynamo.utils import maybe_disable_inference_mode
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from precompiled.packages.describe import difference
from precompiled.packages.describe.descriptions import Descriptions
from precompiled.packages.describe.errors import Mismatch, NotPortable
from precompiled.packages.dynamo import ranks
from precompiled.torch_internals.graph import ambient_modes

_GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)
# Settings that do not affect a trace, such as file paths, logs, and limits of recompiles.
_IRRELEVANT = frozenset(
    """
    _save_config_ignore accumulated_cache_size_limit accumulated_recompile_limit base_dir cache_size_limit
    debug_dir_root fail_on_recompile_limit_hit log_compilation_metrics log_file_name recompile_limit
    report_guard_failures repro_after repro_level run_gc_after_compile verbose
    """.split()
)


def is_inductors(path: str) -> bool:
    """Whether Inductor generated a module's file."""
    # Inductor's cache_dir() would create the directory and set the variable.
    directory = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or default_cache_dir()
    folder, _, name = path.removeprefix(os.path.join(os.path.abspath(directory), "")).partition(os.sep)
    # The directory may also contain files of other programs. codecache.get_path names a folder after the second and
    # third character of the file names in it.
    return len(folder) == 2 and name[1:3] == folder


def process_state() -> dict[str, str]:
    """The parts of the process's state, except modes and configuration, that affect a trace and have no guard."""
    from torch.nn.modules import module

    return {
        "device": str(torch.utils._device.CURRENT_DEVICE),
        # A trace treats results of torch.cuda.is_available(), device_count() and others as constants.
        "current device": str(torch.cuda.current_device() if torch.cuda.is_initialized() else 0),
        "devices": ", ".join(torch.cuda.get_device_name(index) for index in range(_devices())) or "none",
        "module hooks": str([len(getattr(module, name, ())) for name in _GLOBAL_HOOKS]),
        "forward-mode level": str(torch.autograd.forward_ad._current_level),
        # A trace also treats the types of autocast as constants. GlobalStateGuard checks these only if autocast is on.
        "autocast types": ", ".join(str(torch.get_autocast_dtype(device)) for device in ("cpu", "cuda")),
        "digits": str(getattr(sys, "get_int_max_str_digits", int)()),
        "process groups": ranks.process_groups(),
        "DTensors": ranks.dtensors_state(),
    }


def _devices() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def first_device() -> str:
    return "cuda:0" if _devices() else "cpu"


def mode_problem() -> NotPortable | None:
    """Return an error if an active mode prevents packages; else None."""
    if torch._dynamo.config.compiled_autograd:
        # With compiled autograd, Dynamo traces compiled autograd's own code in a backward, and the modules that this
        # code imports. If nothing was traced before, Dynamo begins to trace during the import of such a module, and
        # fails.
        return NotPortable("it is traced with torch._dynamo.config.compiled_autograd", code="package-mode")
    if getattr(torch._dynamo.config, "enable_compiler_collectives", False):
        # With this setting, ranks communicate while they trace. A rank that traces would wait forever for a rank that
        # uses a package.
        return NotPortable("it is traced with torch._dynamo.config.enable_compiler_collectives", code="package-mode")
    active = torch._C._len_torch_function_stack() or torch._functorch.pyfunctorch.retrieve_all_functorch_interpreters()
    return in_a_mode() if active else None


def in_a_mode() -> NotPortable:
    return NotPortable("it is traced under a torch function mode, a functorch transform or export", code="package-mode")


def global_state() -> str:
    """Return the state that Dynamo's global guard checks (grad mode, autocast, precision, threads, ...), as text."""
    return str(torch._C._dynamo.guards.GlobalStateGuard().__getstate__())


def check_global_state(kept: str) -> None:
    state = restored_global_state(kept)
    if not state.check():
        raise Mismatch(difference.state(global_state(), kept, "when it was traced"))


def restored_global_state(kept: str) -> Any:
    state = torch._C._dynamo.guards.GlobalStateGuard()
    state.__setstate__(kept)
    return state


def trace_configuration() -> str:
    """Digest of what affects all traces: Dynamo's settings, its tables of the program's functions, and the stance.

    Raises NotPortable if a setting contains code that has no description.
    """
    config = torch._dynamo.config
    values = config.save_config_portable(ignore_private_configs=False)
    described = Descriptions()
    shown = [[name, described.value(value)] for name, value in sorted(values.items()) if name not in _IRRELEVANT]
    # save_config_portable omits these two settings, but they affect traces.
    for name in ("constant_functions", "skipfiles_inline_module_allowlist"):
        shown.append([name, sorted(repr(described.value(item)) for item in getattr(config, name, ()))])
    # These settings name sources whose sizes are symbolic (TORCH_COMPILE_DYNAMIC_SOURCES).
    for name in ("dynamic_sources", "dynamic_values", "unbacked_sources"):
        shown.append([name, getattr(torch.compiler.config, name, "")])
    # Users add functions to these tables by torch.compiler.allow_in_graph, disallow_in_graph and others. Compiled
    # autograd adds a function for each kind of autograd node that it traces. The digest leaves out the functions of
    # compiled autograd, because a process that only uses packages never adds them.
    compiled_autograd = sys.modules.get("torch._dynamo.compiled_autograd")
    nodes = {id(node) for node in vars(compiled_autograd.ops).values()} if compiled_autograd is not None else set()
    for name in (
        "_allowed_callable_ids",
        "_disallowed_callable_ids",
        "_nonstrict_trace_callable_ids",
        "_leaf_function_ids",
    ):
        ids = getattr(torch._dynamo.trace_rules, name, None)
        shown.append([name, len(ids() - nodes) if ids is not None else 0])
    # Whether a graph break raises (torch._dynamo.error_on_graph_break), unless the configuration decides.
    breaks = getattr(torch._dynamo.utils, "_get_error_on_graph_break", lambda: None)()
    stance = getattr(getattr(torch._dynamo.eval_frame, "_stance", None), "stance", "")
    return hashlib.sha256(repr((shown, breaks, str(stance))).encode()).hexdigest()


def modes_of_a_compile(uses_cpu: bool, on_gpu: bool) -> dict[str, object]:
    """The modes in which a trace would call the backend. For the call, Dynamo replaces inference mode by no_grad."""
    with maybe_disable_inference_mode():
        return ambient_modes.read(uses_cpu, on_gpu)


def passing() -> bool:
    """Whether Dynamo may skip frames for a reason that holds only in this process."""
    return bool(torch._dynamo.config.suppress_errors or os.environ.get("TORCHDYNAMO_DEBUG_FUNCTION"))
