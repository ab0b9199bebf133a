"""Reads the modes around a graph (grad mode, autocast, precision, ...) and restores them for a compile or a load.

- Thread-local modes (grad mode, inference mode, autocast) are restored for every compile and every load, because
  compiles and loads read these modes.
- Process-wide modes (determinism, threads, precision) are restored in the worker only. In a client, process-wide modes
  belong to the user.

Private names: torch._C.{_autocast_supported_devices, _get_fp32_precision_getter, _set_fp32_precision_setter,
_is_fwd_grad_enabled, _set_fwd_grad_enabled, _exit_dual_level}, torch.autograd.forward_ad._current_level,
torch._C.{_get_overrideable_sdp_enabled, _set_sdp_use_overrideable, _get_fa3_sdp_enabled, _set_sdp_use_fa3,
_get_sdp_priority_order, _set_sdp_priority_order, _get_sm_carveout_experimental, _set_sm_carveout_experimental},
torch._C._functorch.{get_dynamic_layer_stack_depth, pop_dynamic_layer_stack_and_undo_to_depth},
torch._dynamo.compiled_autograd.in_compiled_autograd_region,
torch._functorch._aot_autograd.utils.{top_saved_tensors_hooks, saved_tensors_hooks_are_inlineable},
torch.nn.attention.{_cur_sdpa_kernel_backends, _sdpa_kernel}, torch._fused_sdp_choice, torch._subclasses.FakeTensorMode,
torch.utils._python_dispatch._disable_current_modes.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from typing import Any

import torch
import torch.nn.attention
from torch._dynamo import compiled_autograd
from torch._functorch._aot_autograd import utils as aot_utils
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

from precompiled.core.errors import Bypass, CompileFailed


def read(uses_cpu: bool, on_gpu: bool = True) -> dict[str, object]:
    """Return the current modes as plain data.

    ``uses_cpu``: include the number of threads, which Inductor compiles into CPU kernels only. ``on_gpu``: include the
    priority of attention backends, which does not exist on the CPU. Raises Bypass if AOTAutograd would trace hooks on
    saved tensors into the graph.
    """
    if not compiled_autograd.in_compiled_autograd_region and aot_utils.saved_tensors_hooks_are_inlineable(
        aot_utils.top_saved_tensors_hooks()
    ):
        raise Bypass("the graph runs under saved-tensor hooks that are compiled into it", code="saved-tensors-hooks")
    _settle_sdp_priority()
    autocast = {
        device: str(torch.get_autocast_dtype(device)).removeprefix("torch.")
        for device in torch._C._autocast_supported_devices()
        if torch.is_autocast_enabled(device)
    }
    default_device = torch.get_default_device()
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": autocast,
        # The dtypes are included even if autocast is off, because a graph may enable autocast without naming a dtype.
        "autocast_dtypes": {
            device: str(torch.get_autocast_dtype(device)).removeprefix("torch.")
            for device in torch._C._autocast_supported_devices()
        },
        "autocast_cache": torch.is_autocast_cache_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fill_uninitialized_memory": torch.utils.deterministic.fill_uninitialized_memory,
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "default_device": None if default_device.type == "cpu" else str(default_device),
        "float32_matmul_precision": _legacy_matmul_precision(),
        "fp32_precision": [torch._C._get_fp32_precision_getter(*place) for place in _PRECISION_PLACES],
        "reduced_precision": [getattr(torch.backends.cuda.matmul, name) for name in _REDUCED_PRECISION],
        "cudnn": [torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic],
        "mkldnn": torch.backends.mkldnn.enabled,
        "sdp": [getter() for getter, _setter in _SDP],
        "sdp_priority": list(torch._C._get_sdp_priority_order()) if on_gpu else [],
        "math_sdp_reduction": torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed(),
        "sm_carveout": torch._C._get_sm_carveout_experimental(),
        "opt_einsum": _opt_einsum(),
        "threads": torch.get_num_threads() if uses_cpu else 0,
        # With compiled autograd, AOTAutograd treats parameters as static (collect_metadata_analysis.py).
        "compiled_autograd": compiled_autograd.in_compiled_autograd_region,
    }


# The places where torch stores a precision of float32 arithmetic (torch/backends/__init__.py, fp32_precision).
_PRECISION_PLACES = [
    (backend, operation)
    for backend, operations in (("generic", ("all",)), ("cuda", ("all", "matmul", "conv", "rnn")))
    for operation in operations
] + [("mkldnn", operation) for operation in ("all", "matmul", "conv", "rnn")]
_SDP = (
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
    (torch._C._get_overrideable_sdp_enabled, torch._C._set_sdp_use_overrideable),
    (torch._C._get_fa3_sdp_enabled, torch._C._set_sdp_use_fa3),
)
_REDUCED_PRECISION = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")


@cache
def _settled_sdp_priority() -> None:
    # _fused_sdp_choice() sets the priority and then chooses a backend. The choice warns and raises if all backends are
    # disabled.
    with warnings.catch_warnings(), suppress(RuntimeError):
        warnings.simplefilter("ignore")
        with _disable_current_modes(), FakeTensorMode(), torch.no_grad():
            query = torch.empty(1, 1, 64, 64, device="cuda", dtype=torch.float16)
            torch._fused_sdp_choice(query, query, query)


def _settle_sdp_priority() -> None:
    """Make torch set its default priority of attention backends now, if CUDA is initialized.

    Torch gives cuDNN the highest priority at the first attention on a GPU, even if this attention is only traced
    (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, priority_order). If torch set the priority later, a graph
    would have different keys before and after the first attention. Also, a worker's first attention would overwrite the
    priority that the program has set. With plain torch.compile, the first compile sets the priority, too, because
    Inductor's own patterns contain attention.
    """
    if torch.cuda.is_initialized():
        _settled_sdp_priority()


def _legacy_matmul_precision() -> str | None:
    """Return the precision of float32 matrix products from torch's older getter.

    Returns None if the program has set the newer ``fp32_precision``, because the older getter then raises.
    """
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _opt_einsum() -> list[object]:
    """Return whether a traced torch.einsum uses opt_einsum, and opt_einsum's strategy (torch/functional.py)."""
    einsum = torch.backends.opt_einsum
    return [True, einsum.strategy] if einsum.is_available() and einsum.enabled else [False, None]


@contextmanager
def thread_local(modes: Mapping[str, Any]) -> Iterator[None]:
    """Set this thread's grad mode, inference mode and autocast to those in ``modes``."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(modes["inference"]))
        stack.enter_context(torch.set_grad_enabled(modes["grad"]))
        for device in torch._C._autocast_supported_devices():
            dtype = modes["autocast"].get(device)
            if dtype is not None or torch.is_autocast_enabled(device):
                stack.enter_context(
                    torch.autocast(
                        device,
                        dtype=getattr(torch, dtype) if dtype else None,
                        enabled=dtype is not None,
                        cache_enabled=modes["autocast_cache"],
                    )
                )
            before, wanted = torch.get_autocast_dtype(device), getattr(torch, modes["autocast_dtypes"][device])
            if before != wanted:
                stack.callback(torch.set_autocast_dtype, device, before)
                torch.set_autocast_dtype(device, wanted)
        yield


@contextmanager
def process_wide(modes: Mapping[str, object]) -> Iterator[None]:
    """Set the process-wide modes to those in ``modes``. For workers only: a worker lowers only one graph at a time."""
    before = read(uses_cpu=True)
    try:
        _set(modes)
        if modes["default_device"] is None:
            yield
        else:
            with torch.device(modes["default_device"]):
                yield
    finally:
        _set(before)


@contextmanager
def set_back_after_an_error() -> Iterator[None]:
    """After an error, restore the modes that a graph may change.

    A graph may change grad mode, the attention backends and their priority, autocast, and the levels of torch.func's
    transforms and of forward mode.
    """
    depth, forward = torch._C._functorch.get_dynamic_layer_stack_depth(), torch._C._is_fwd_grad_enabled()
    grad, attention = torch.is_grad_enabled(), torch.nn.attention._cur_sdpa_kernel_backends(with_priority=True)
    devices = torch._C._autocast_supported_devices()
    autocast = [(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in devices]
    cache, nesting = torch.is_autocast_cache_enabled(), torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    try:
        yield
    except BaseException:
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
        torch._C._set_fwd_grad_enabled(forward)
        if forward_ad._current_level < 0:  # Forward mode has at most one level, and the program is in none.
            with suppress(RuntimeError):  # raises if the graph has not entered the level
                torch._C._exit_dual_level(level=0)
        torch.set_grad_enabled(grad)
        if torch.nn.attention._cur_sdpa_kernel_backends(with_priority=True) != attention:
            torch.nn.attention._sdpa_kernel(attention, set_priority=True)
        for device, enabled, dtype in autocast:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(cache)
        while torch.autocast_increment_nesting() > nesting:
            torch.autocast_decrement_nesting()
            torch.autocast_decrement_nesting()
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        raise


def _set(modes: Mapping[str, Any]) -> None:
    torch.use_deterministic_algorithms(modes["deterministic"], warn_only=modes["deterministic_warn_only"])
    torch.utils.deterministic.fill_uninitialized_memory = modes["fill_uninitialized_memory"]
    torch.set_default_dtype(getattr(torch, modes["default_dtype"]))
    if modes["float32_matmul_precision"] is not None:
        torch.set_float32_matmul_precision(modes["float32_matmul_precision"])
    for (backend, operation), precision in zip(_PRECISION_PLACES, modes["fp32_precision"], strict=True):
        if torch._C._get_fp32_precision_getter(backend, operation) != precision:
            torch._C._set_fp32_precision_setter(backend, operation, precision)
    for name, allowed in zip(_REDUCED_PRECISION, modes["reduced_precision"], strict=True):
        if getattr(torch.backends.cuda.matmul, name) != allowed:
            setattr(torch.backends.cuda.matmul, name, allowed)
    cudnn = torch.backends.cudnn
    cudnn.enabled, cudnn.benchmark, cudnn.deterministic = modes["cudnn"]
    torch.backends.mkldnn.set_flags(modes["mkldnn"])
    for (_getter, setter), enabled in zip(_SDP, modes["sdp"], strict=True):
        setter(enabled)
    if modes["sdp_priority"]:
        torch._C._set_sdp_priority_order(modes["sdp_priority"])
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(modes["math_sdp_reduction"])
    # This setter prints a warning, so call it only if the value differs.
    if torch._C._get_sm_carveout_experimental() != modes["sm_carveout"]:
        torch._C._set_sm_carveout_experimental(modes["sm_carveout"])
    _set_opt_einsum(*modes["opt_einsum"])
    compiled_autograd.in_compiled_autograd_region = modes["compiled_autograd"]
    if modes["threads"]:
        torch.set_num_threads(modes["threads"])


def _set_opt_einsum(enabled: bool, strategy: str | None) -> None:
    """Raises CompileFailed if the program has opt_einsum and this process lacks it."""
    if [enabled, strategy] == _opt_einsum():
        return
    einsum = torch.backends.opt_einsum
    if not einsum.is_available():
        raise CompileFailed("the program has opt_einsum, but the worker lacks it", code="environment-differs")
    einsum.enabled = enabled
    if enabled:
        einsum.strategy = strategy
