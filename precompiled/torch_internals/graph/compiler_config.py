"""Encodes the settings of Inductor, functorch and symbolic sizes that a compile depends on, and applies them in a
worker.

The private functions are defined in torch/utils/_config_module.py. This file also reads the attribute user_override of
the entries of ``_config``.

Private names: torch._inductor.config.{save_config_portable, patch, _save_config_ignore, _config, _is_default},
torch._functorch.config.{save_config_portable, patch, _save_config_ignore, _config, _is_default},
torch._inductor.config_comms.{patch, _config}, torch.fx.experimental._config.{patch, _config}.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
import torch._functorch.config
import torch._inductor.config
import torch._inductor.config_comms
import torch.fx.experimental._config

from precompiled.core.errors import Bypass, CompileFailed
from precompiled.torch_internals.user_code import code_settings

_inductor = torch._inductor.config
_functorch = torch._functorch.config
_comms = torch._inductor.config_comms
_shapes = torch.fx.experimental._config

# Settings that save_config_portable omits.
_LEFT_OUT = ("pre_grad_pass_timing",)
# Settings that affect where and how fast torch compiles a graph, but not the result.
_IRRELEVANT = tuple(
    "compile_threads debug disable_progress quiesce_async_compile_pool verbose_progress worker_start_method".split()
)
# "aot_inductor." is not in this list, because its debug_compile and debug_symbols also affect torch.compile.
_IRRELEVANT_PREFIXES = ("trace.", "quiesce_")
# Under these settings, an artifact would differ from plain torch.compile's result, or could not contain all of the
# compiled code.
_REFUSED = {
    "force_disable_caches": ("caches-disabled", "Inductor's caches are disabled (force_disable_caches)"),
    "fx_wrapper": ("fx-wrapper", "fx_wrapper is on, and its code cannot be stored"),
}
_COMMS = "config_comms"  # settings that Inductor reads only if the setting _REORDERS is on
_REORDERS = "reorder_for_compute_comm_overlap"
_SHAPES = "shapes"  # settings of symbolic sizes that differ from torch's defaults (backed_size_oblivious, for example)
_MODULES = {
    "inductor": "torch._inductor.config",
    "functorch": "torch._functorch.config",
    _COMMS: "torch._inductor.config_comms",
    _SHAPES: "torch.fx.experimental._config",
}
# Under these settings, Inductor synchronizes measurements between ranks, reads the global rank, or decomposes
# collectives in a way that depends on the state of the process. But a worker has no rank, and all ranks share one
# artifact.
_OF_RANKS = {
    "inductor": (
        "distributed_max_autotune_gemm",
        "_fuse_ddp_communication",
        "_micro_pipeline_tp",
        "_collective.auto_select",
        "aten_distributed_optimizations.enable_overlap_scheduling",
        "aten_distributed_optimizations.enable_low_contention_collectives",
        "aten_distributed_optimizations.spmd_check",
    ),
    "functorch": ("_sync_decision_cross_ranks",),
    _COMMS: (
        "runtime_estimations_align_across_all_distributed_ranks",
        "runtime_estimations_use_nccl_lib_estimations",
        "reorder_for_compute_comm_overlap_broadcast_runtime_estimations",
    ),
}
# Under these settings, Inductor reads this rank's position in a collective's group, to compute its share of a bucket.
_OF_RANKS_IN_GROUPS = ("bucket_all_gathers_fx", "aten_distributed_optimizations.allow_comms_decompositions")
_OFF = (None, False, "none")
# Under this setting, ranks synchronize their decisions on each graph, so a compile needs all ranks.
_OF_ALL_RANKS = "_sync_cache_decision_cross_ranks"


def refuse_ranks(settings: Mapping[str, Mapping[str, object]]) -> None:
    """Raise Bypass if no artifact of a graph with collectives can serve all ranks under these settings.

    No artifact can serve all ranks if Inductor would compile the graph together with other ranks, or would write group
    names into machine code. ``settings`` is a result of ``snapshot``.
    """
    if settings["inductor"].get("cpp_wrapper"):
        raise Bypass("with cpp_wrapper, code of collectives names their groups", code="cpp-wrapper")
    for module, names in _OF_RANKS.items():
        for name in names:
            if settings.get(module, {}).get(name) not in _OFF:
                raise Bypass(f"{_MODULES[module]}.{name} is on, and reads the rank", code="rank-dependent")


def ask_for_ranks(settings: Mapping[str, Mapping[str, object]]) -> bool:
    """Whether the compile of a graph with collectives depends on this rank's position in its groups."""
    return any(settings["inductor"].get(name) not in _OFF for name in _OF_RANKS_IN_GROUPS)


def refuse_device(settings: Mapping[str, Mapping[str, object]], device: str) -> None:
    """Raises Bypass if an artifact cannot contain the code that these settings give for this device ("cpu" or
    "cuda:0").
    """
    if settings["inductor"].get("cpp_wrapper") and device != "cpu":
        # The code refers to kernel files in Triton's cache.
        raise Bypass(f"an artifact cannot contain cpp_wrapper code for {device}", code="cpp-wrapper")
    if freezes(settings) and device != "cpu":
        raise Bypass(f"freezing on {device}", code="freezing")


def refuse_other_cudagraphs(settings: Mapping[str, Mapping[str, object]], annotation: Any) -> None:
    """Raises Bypass if ``torch._dynamo.override_cudagraphs`` contradicts the settings, for a graph on a GPU.

    ``annotation`` is the module's ``meta["cudagraph_annotation"]``, or None. The rule is the same as in
    torch/_inductor/compile_fx.py (create_compiler_config_extra).
    """
    if annotation is None:
        return
    cudagraphs = bool(settings["inductor"].get("triton.cudagraphs"))
    if annotation.fwd not in (None, cudagraphs) or (cudagraphs and annotation.bwd is False):
        raise Bypass(f"override_cudagraphs requests {annotation}, but the settings differ", code="marked-node")


def freezes(settings: Mapping[str, Mapping[str, object]]) -> bool:
    """Whether a compile with these settings and the current grad mode turns the weights of the graph's module into
    constants (frozen_weights.py).

    Raises Bypass if freezing_discard_parameters is on.
    """
    if not settings["inductor"].get("freezing") or torch.is_grad_enabled():
        return False
    if settings["inductor"].get("freezing_discard_parameters"):
        raise Bypass("freezing_discard_parameters discards the weights", code="freezing")
    return True


def snapshot(options: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """The configuration of the next compile: the current configuration, overridden by torch.compile's ``mode=`` and
    ``options=``.

    Raises Bypass if a setting is code that cannot be sent, or disables something that an artifact needs.
    """
    inductor = _inductor.save_config_portable(ignore_private_configs=False)
    inductor.update({name: getattr(_inductor, name) for name in _LEFT_OUT if hasattr(_inductor, name)})
    inductor.update({name: getattr(_inductor, name) for name in code_settings.NAMES if hasattr(_inductor, name)})
    inductor.update(_set(_inductor))
    inductor.update(options)
    for name, refused in _REFUSED.items():
        # Read the setting by its name, because save_config_portable omits aliases such as force_disable_caches.
        if inductor.get(name, getattr(_inductor, name, None)):
            raise Bypass(refused[1], code=refused[0])
    functorch = _functorch.save_config_portable(ignore_private_configs=False) | _set(_functorch)
    if functorch.get(_OF_ALL_RANKS):
        raise Bypass(f"torch._functorch.config.{_OF_ALL_RANKS} is on", code="rank-dependent")
    comms = {}
    if inductor.get(_REORDERS) not in _OFF:
        values = {name: getattr(_comms, name) for name in _comms._config if not name.startswith("env_")}
        comms[_COMMS] = _plain(_MODULES[_COMMS], values)
    shapes = {name: getattr(_shapes, name) for name in _shapes._config}
    return {
        "inductor": _plain(_MODULES["inductor"], inductor),
        "functorch": _plain(_MODULES["functorch"], functorch),
        **comms,
        _SHAPES: _plain(_MODULES[_SHAPES], _other_than_torchs(_shapes, shapes)),
        # A user changes this tag to cause cache misses in torch's caches. The tag is part of the key, so lookups in the
        # store miss, too.
        "tag": {"cache_key_tag": str(getattr(torch.compiler.config, "cache_key_tag", ""))},
    }


# From torch 2.13 on, a changed setting applies to a contextvars.Context (torch/utils/_config_module.py). In 2.11, a
# setting applies to all threads, and loads do not use the ``options=`` of torch.compile.
_OF_A_CONTEXT = frozenset(
    found
    for module in (_inductor, _functorch, _comms, _shapes)
    for entry in module._config.values()
    if isinstance(found := getattr(entry, "user_override", None), contextvars.ContextVar)
)


def context(options: Mapping[str, object]) -> contextvars.Context:
    """A new context with this thread's current settings, overridden by ``mode=`` and ``options=`` of torch.compile.

    The context contains nothing else of this thread's context. Torch also reads settings when it loads a compiled graph
    (``cudagraph_policy``, ``graph_partition``), and a new thread would start with default settings.
    """
    with _inductor.patch(dict(options)) if options and _OF_A_CONTEXT else nullcontext():
        settings = [(known, value) for known, value in contextvars.copy_context().items() if known in _OF_A_CONTEXT]
    made = contextvars.Context()
    for known, value in settings:
        made.run(known.set, value)
    return made


def changed_settings() -> list[str]:
    """The settings that this process has changed since it imported torch, as ``inductor.NAME``. For display."""
    modules = {"inductor": _inductor, "functorch": _functorch}
    return [
        f"{name}.{setting}"
        for name, module in modules.items()
        for setting in module._config
        if not module._is_default(setting)
    ]


def _set(module: Any) -> dict[str, object]:
    """Return the changed settings among those that torch omits when it saves its configuration.

    Torch omits these settings because their values may be code.
    """
    values = {name: getattr(module, name) for name in module._save_config_ignore if hasattr(module, name)}
    return _other_than_torchs(module, values)


def _other_than_torchs(module: Any, values: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value != module._config[name].default}


def _plain(module: str, values: Mapping[str, object]) -> dict[str, object]:
    return {
        name: _plain_value(f"{module}.{name}", value)
        for name, value in sorted(values.items())
        if name not in _IRRELEVANT and not name.startswith(_IRRELEVANT_PREFIXES)
    }


def _plain_value(name: str, value: object) -> object:
    """JSON for a setting. Tuples and sets are tagged, so that they keep their type."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [_plain_value(name, item) for item in value]
    if type(value) is tuple:
        return {"tuple": [_plain_value(name, item) for item in value]}
    if isinstance(value, (set, frozenset)):
        return {"set": sorted((_plain_value(name, item) for item in value), key=repr)}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"dict": {key: _plain_value(name, item) for key, item in value.items()}}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    found = code_settings.encode(value, lambda held: _plain_value(name, held))
    if found is not None:
        return found
    raise Bypass(f"{name} is a {type(value).__name__}, which cannot be sent", code="unpicklable-option")


def _value(plain: object) -> object:
    if isinstance(plain, list):
        return [_value(item) for item in plain]
    if isinstance(plain, dict):
        if code_settings.is_encoded(plain):
            return code_settings.decode(plain, _value)
        ((kind, content),) = plain.items()
        if kind == "dict":
            return {key: _value(item) for key, item in content.items()}
        if kind == "dtype":
            return getattr(torch, content)
        return {"tuple": tuple, "set": set}[kind](_value(item) for item in content)
    return plain


def modules(settings: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    """Return the modules and operators that a worker needs for these settings, as a map from name to digest."""
    return dict(code_settings.modules([value for values in settings.values() for value in values.values()]))


def _setting(name: str, encoded: object) -> object:
    try:
        return code_settings.with_uuid(name, _value(encoded), encoded)
    except Exception as error:  # importing the module of a pass can raise anything
        said = f"the setting {name} does not decode: {type(error).__name__}: {error}"
        raise CompileFailed(said, code="undecodable-graph") from error


@contextmanager
def applied(configs: Mapping[str, Mapping[str, Any]], compile_threads: int) -> Iterator[None]:
    """Apply the captured configuration for one compile, and restore the previous configuration afterwards."""
    with ExitStack() as stack:
        for module, name in ((_inductor, "inductor"), (_functorch, "functorch"), (_comms, _COMMS), (_shapes, _SHAPES)):
            values = {key: _setting(key, value) for key, value in configs.get(name, {}).items()}
            changed = {key: value for key, value in values.items() if getattr(module, key, None) != value}
            stack.enter_context(module.patch(changed))
        stack.enter_context(_inductor.patch(compile_threads=compile_threads))
        yield
