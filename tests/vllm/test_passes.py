"""Tests that a worker has exactly the sent part of vLLM's configuration. tests/e2e/test_vllm.py uses a real vLLM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support_values import PassConfig

from precompiled.core.errors import Bypass, CompileFailed
from precompiled.torch_internals.graph import compiler_config
from precompiled.vllm import passes


def of_vllm(device: str = "cuda", dump: str | None = None, model: Any = None) -> SimpleNamespace:
    """Return a configuration like vLLM's, with fields that change from run to run."""
    return SimpleNamespace(
        compile_debug_dump_path=lambda: dump,
        compilation_config=SimpleNamespace(
            backend="inductor",
            custom_ops=["none"],
            mode=True + 2,
            splitting_ops=["vllm::attention"],
            use_inductor_graph_partition=False,
            pass_config=PassConfig(False),
            cache_dir="/somewhere",
        ),
        device_config=SimpleNamespace(device=torch.device(device)),
        model_config=model,
        scheduler_config=SimpleNamespace(max_num_batched_tokens=2048, max_num_seqs=4),
        instance_id="another each time",
    )


def sent(config: Any) -> Any:
    """Return the configuration as a worker receives it."""
    plain = compiler_config._plain_value("a pass", passes._sent(config))
    return passes._Config("vllm_config", compiler_config._value(plain))


def test_worker_has_the_fields_that_passes_read() -> None:
    model = SimpleNamespace(dtype=torch.bfloat16, using_transformers_backend=lambda: False, model="/a/path")
    found = sent(of_vllm(model=model))
    assert found.compilation_config.splitting_ops == ["vllm::attention"] and found.compilation_config.mode == 3
    assert found.compilation_config.pass_config == PassConfig(False)
    assert found.device_config.device == torch.device("cuda")
    assert found.model_config.dtype is torch.bfloat16 and found.model_config.using_transformers_backend() is False
    assert found.scheduler_config.max_num_batched_tokens == 2048 and found.compile_debug_dump_path() is None
    assert sent(of_vllm()).model_config is None


@pytest.mark.parametrize(
    "path", ["instance_id", "compilation_config.cache_dir", "scheduler_config.max_num_seqs", "parallel_config"]
)
def test_field_that_was_not_sent_cannot_be_read(path: str) -> None:
    found = sent(of_vllm())
    part, _, name = path.rpartition(".")
    with pytest.raises(CompileFailed, match=f"vllm_config.{path} ") as refused:
        getattr(getattr(found, part) if part else found, name)
    assert refused.value.code == "vllm-context"


@pytest.mark.reason("vllm-context")
@pytest.mark.parametrize("config", [of_vllm("cuda:1"), of_vllm(dump="/dump")], ids=["an index", "a dump"])
def test_unsupported_configuration_is_refused(config: Any) -> None:
    with pytest.raises(Bypass) as refused:
        passes._sent(config)
    assert refused.value.code == "vllm-context"
