"""Describes the modes of a captured graph (ambient_modes.py): the calls that set each mode, and the mode's parts."""

from __future__ import annotations

SET_BY = {
    "grad": "torch.no_grad, torch.set_grad_enabled, torch.enable_grad, torch.inference_mode",
    "inference": "torch.inference_mode",
    "autocast": "torch.autocast",
    "autocast_dtypes": "torch.set_autocast_dtype",
    "autocast_cache": "torch.autocast(cache_enabled=)",
    "deterministic": "torch.use_deterministic_algorithms",
    "deterministic_warn_only": "torch.use_deterministic_algorithms(warn_only=)",
    "fill_uninitialized_memory": "torch.utils.deterministic.fill_uninitialized_memory",
    "default_dtype": "torch.set_default_dtype",
    "default_device": "torch.set_default_device",
    "float32_matmul_precision": "torch.set_float32_matmul_precision",
    "fp32_precision": "torch.backends.*.fp32_precision",
    "reduced_precision": "torch.backends.cuda.matmul",
    "cudnn": "torch.backends.cudnn",
    "mkldnn": "torch.backends.mkldnn",
    "sdp": "torch.nn.attention.sdpa_kernel, torch.backends.cuda.enable_*_sdp",
    "sdp_priority": "torch.nn.attention.sdpa_kernel(set_priority=)",
    "math_sdp_reduction": "torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp",
    "sm_carveout": "torch._C._set_sm_carveout_experimental",
    "opt_einsum": "torch.backends.opt_einsum, and whether it is installed",
    "threads": "torch.set_num_threads, OMP_NUM_THREADS, the CPUs that the process may use",
    "compiled_autograd": "compiled autograd",
    "groups": "the process groups of the graph's collectives, and how many ranks they have",
    "ranks": "this rank's place in its process groups",
}
# Modes of the whole process: a program sets them once, and not around a call.
PROCESS_WIDE = ("threads", "default_dtype", "default_device", "float32_matmul_precision", "fp32_precision")
# Maps a mode to a second mode whose call sets both. If both have changed, causes.py names only the second.
FOLLOWS = {"autocast_dtypes": "autocast", "fp32_precision": "float32_matmul_precision"}
PARTS = {
    "fp32_precision": (
        "generic.all",
        "cuda.all",
        "cuda.matmul",
        "cuda.conv",
        "cuda.rnn",
        "mkldnn.all",
        "mkldnn.matmul",
        "mkldnn.conv",
        "mkldnn.rnn",
    ),
    "reduced_precision": ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"),
    "cudnn": ("enabled", "benchmark", "deterministic"),
    "sdp": ("flash", "mem_efficient", "math", "cudnn", "overrideable", "fa3"),
    "sdp_priority": ("first", "second", "third", "fourth", "fifth"),
    "opt_einsum": ("enabled", "strategy"),
}
