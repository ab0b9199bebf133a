"""Tests that torch's modes and configuration at a graph's capture apply to one compile, and are restored afterwards."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch._functorch.config
import torch._inductor.config
import torch.fx.experimental._config

from precompiled.core.errors import CompileFailed
from precompiled.torch_internals.graph import ambient_modes, compiler_config
from precompiled.torch_internals.user_code import code_settings


@pytest.fixture(autouse=True)
def state_is_left_as_found() -> Iterator[None]:
    before = ambient_modes.read(uses_cpu=True)
    yield
    assert ambient_modes.read(uses_cpu=True) == before


def captured_under(*contexts: Any) -> dict[str, Any]:
    from contextlib import ExitStack

    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        # Clients send the modes as JSON, so the test converts them to JSON and back.
        return dict(json.loads(json.dumps(ambient_modes.read(uses_cpu=True))))


@contextmanager
def autocasts_to(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_autocast_dtype("cpu")
    torch.set_autocast_dtype("cpu", dtype)
    try:
        yield
    finally:
        torch.set_autocast_dtype("cpu", before)


THREAD_LOCAL: dict[str, Callable[[], Any]] = {
    "grad off": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast's dtype, where it is off": lambda: autocasts_to(torch.float16),
    "autocast without a cache": lambda: torch.autocast("cpu", torch.bfloat16, cache_enabled=False),
}


@pytest.mark.parametrize("name", THREAD_LOCAL)
def test_thread_local_state_is_restored_in_another_thread(name: str) -> None:
    wanted = captured_under(THREAD_LOCAL[name]())
    seen: list[dict[str, Any]] = []

    def load() -> None:
        with ambient_modes.thread_local(wanted):
            seen.append(ambient_modes.read(uses_cpu=True))
        seen.append(ambient_modes.read(uses_cpu=True))

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    assert json.loads(json.dumps(seen[0])) == wanted
    assert seen[1] == ambient_modes.read(uses_cpu=True)


def test_mode_that_was_off_at_capture_is_switched_off() -> None:
    wanted = captured_under()
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad(), ambient_modes.thread_local(wanted):
        assert torch.is_grad_enabled()
        assert not torch.is_autocast_enabled("cpu")


CHANGES: dict[str, dict[str, Any]] = {
    "deterministic": {"deterministic": True, "deterministic_warn_only": True},
    "not filled": {"fill_uninitialized_memory": False},
    "default dtype": {"default_dtype": "float64"},
    "matmul precision": {"float32_matmul_precision": "medium"},
    "cudnn": {"cudnn": [False, True, True]},
    "mkldnn": {"mkldnn": False},
    "attention": {"sdp": [False, False, True, False, False, True]},
    "attention's order": {"sdp_priority": [2, 1, 0, 3, 4]},
    "attention's arithmetic": {"math_sdp_reduction": True},
    "multiprocessors left out": {"sm_carveout": 8},
    "threads": {"threads": 1},
    "default device": {"default_device": "meta"},
}


@pytest.mark.parametrize("name", CHANGES)
def test_process_wide_state_is_applied_for_one_compile_and_restored(name: str) -> None:
    before = ambient_modes.read(uses_cpu=True)
    wanted = {**before, **CHANGES[name]}
    with ambient_modes.process_wide(wanted):
        assert ambient_modes.read(uses_cpu=True) == wanted
    assert ambient_modes.read(uses_cpu=True) == before


def test_process_wide_state_is_restored_after_an_error() -> None:
    before = ambient_modes.read(uses_cpu=True)
    with pytest.raises(ZeroDivisionError), ambient_modes.process_wide({**before, "default_dtype": "float64"}):
        raise ZeroDivisionError
    assert ambient_modes.read(uses_cpu=True) == before


@pytest.mark.reason("environment-differs")
@pytest.mark.skipif(torch.backends.opt_einsum.is_available(), reason="opt_einsum is installed")
def test_opt_einsum_setting_is_applied_or_the_compile_fails() -> None:
    before = ambient_modes.read(uses_cpu=True)
    assert before["opt_einsum"] == [False, None]
    wanted = {**before, "mkldnn": not before["mkldnn"], "opt_einsum": [True, "auto"]}
    with pytest.raises(CompileFailed, match="has opt_einsum") as failed, ambient_modes.process_wide(wanted):
        pass
    assert failed.value.code == "environment-differs" and ambient_modes.read(uses_cpu=True) == before


def test_thread_count_does_not_count_for_a_gpu_graph() -> None:
    before = torch.get_num_threads()
    wanted = ambient_modes.read(uses_cpu=False)
    assert wanted["threads"] == 0
    with ambient_modes.process_wide(wanted):
        assert torch.get_num_threads() == before


# ---------------------------------------------------------------- configuration


def through_json(options: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(compiler_config.snapshot(options))))


def test_the_whole_configuration_can_be_sent() -> None:
    snapshot = through_json({})
    assert len(snapshot["inductor"]) > 100
    assert snapshot["functorch"]


def test_configuration_is_applied_for_one_compile_and_restored() -> None:
    before = torch._inductor.config.max_fusion_size, torch._inductor.config.compile_threads
    with compiler_config.applied(through_json({"max_fusion_size": 7, "triton.cudagraphs": True}), 3):
        assert torch._inductor.config.max_fusion_size == 7
        assert torch._inductor.config.triton.cudagraphs is True
        assert torch._inductor.config.compile_threads == 3
    assert (torch._inductor.config.max_fusion_size, torch._inductor.config.compile_threads) == before


def test_settings_of_symbolic_sizes_are_sent_and_applied() -> None:
    """A worker that missed backed_size_oblivious would compile the graph differently from plain torch.compile.

    A client sends only the settings that differ from torch's defaults.
    """
    shapes = torch.fx.experimental._config
    assert through_json({})["shapes"] == {}
    with shapes.patch(backed_size_oblivious=True):
        wanted = through_json({})
    assert wanted["shapes"] == {"backed_size_oblivious": True}
    with compiler_config.applied(wanted, 1):
        assert shapes.backed_size_oblivious
    assert not shapes.backed_size_oblivious


def test_settings_of_the_worker_are_overridden() -> None:
    wanted = through_json({})
    with torch._inductor.config.patch(max_fusion_size=7), compiler_config.applied(wanted, 1):
        assert torch._inductor.config.max_fusion_size == wanted["inductor"]["max_fusion_size"]


def test_applying_the_captured_configuration_changes_nothing() -> None:
    wanted = through_json({})
    with compiler_config.applied(wanted, torch._inductor.config.compile_threads):
        assert through_json({}) == wanted


@pytest.mark.parametrize(
    "value",
    [None, True, 3, 0.5, "text", [1, [2]], (1, (2,)), {1, 2}, {"a": {"b": (1,)}}, torch.float16, frozenset({"x"})],
    ids=repr,
)
def test_plain_value_survives_the_round_trip(value: Any) -> None:
    plain = json.loads(json.dumps(compiler_config._plain_value("x", value)))
    expected = set(value) if isinstance(value, frozenset) else value
    assert compiler_config._value(plain) == expected
    assert type(compiler_config._value(plain)) is type(expected)


def test_all_settings_that_save_config_portable_omits_are_known() -> None:
    """torch's save_config_portable omits settings that are code or that torch considers irrelevant.

    A new torch may omit a further setting. This test then fails, until a list says whether workers need the setting.
    """
    module = torch._inductor.config
    portable = module.save_config_portable(ignore_private_configs=False)
    left_out = {name for name, entry in module._config.items() if name not in portable and entry.alias is None}
    known = {
        *code_settings.NAMES,
        *compiler_config._IRRELEVANT,
        *compiler_config._LEFT_OUT,
        # Settings that say where torch caches compiles and measurements.
        "fx_graph_cache",
        "fx_graph_remote_cache",
        "autotune_local_cache",
        "autotune_remote_cache",
        "cutlass.cutlass_dir",
        "cuda.cutlass_dir",
        "xpu.cutlass_dir",
        # Settings that say how torch runs the processes of one compile.
        "compile_worker_watchdog_interval_seconds",
        "compile_worker_mode",
        # Names of passes over collectives.
        "_fuse_ddp_communication_passes",
    }
    left_out = {name for name in left_out if not name.startswith("trace.") and not name.endswith("_TESTING_ONLY")}
    assert left_out <= known, f"decide about {sorted(left_out - known)}"
