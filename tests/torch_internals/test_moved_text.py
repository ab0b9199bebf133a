"""Tests that device indices are found in handwritten code of the form that Inductor generates.

tests/gpu/test_device_index.py tests code that Inductor has generated.
"""

from __future__ import annotations

import pytest

from precompiled.core.errors import Bypass
from precompiled.torch_internals.client.device_index import moved_text

WRAPPER = """
ä = async_compile.triton('triton_add', '''
    triton_meta={'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132), 'configs': [0]},
''', device_str='cuda')
def call(args):
    with torch.cuda._DeviceGuard(0):
        torch.cuda.set_device(0)
        buf0 = empty_strided_cuda((4, 0), (1, 0), torch.float32)
        # ä and ö: columns are bytes
        ö = torch.ops.aten.full.default([0, 4], 0, device=device(type='cuda', index=0)); stream0 = get_raw_stream(0)
        triton_add.run(buf0, 0, stream=stream0)
        graphsafe = torch.cuda.default_generators[0]
        return torch.ops.aten.select.int(ö, 0, index=0), torch.ops.mine.op.default(buf0, 'cuda:0', 'cuda:00', 0)
"""
MOVED = """
ä = async_compile.triton('triton_add', '''
    triton_meta={'device': DeviceProperties(type='cuda', index=3, multi_processor_count=132), 'configs': [0]},
''', device_str='cuda')
def call(args):
    with torch.cuda._DeviceGuard(3):
        torch.cuda.set_device(3)
        buf0 = empty_strided_cuda((4, 0), (1, 0), torch.float32)
        # ä and ö: columns are bytes
        ö = torch.ops.aten.full.default([0, 4], 0, device=device(type='cuda', index=3)); stream0 = get_raw_stream(3)
        triton_add.run(buf0, 0, stream=stream0)
        graphsafe = torch.cuda.default_generators[3]
        return torch.ops.aten.select.int(ö, 0, index=0), torch.ops.mine.op.default(buf0, 'cuda:3', 'cuda:00', 0)
"""


def test_only_device_indices_are_replaced() -> None:
    assert moved_text(WRAPPER, 3) == MOVED


@pytest.mark.parametrize(
    "code",
    [
        "torch.cuda.set_device(1)",
        "torch.cuda.memory._use_cuda_memory_pool_manager(0, pool)",
        "stream = torch.cuda.external_stream(0)",
        "torch.cuda.default_generators[device]",
        "op.default(buf0, device=0)",
        "op.default(buf0, device_index=0)",
        "device(type='cuda', number=0)",
    ],
)
def test_possible_device_index_in_another_form_is_refused(code: str) -> None:
    with pytest.raises(Bypass) as refused:
        moved_text(code, 1)
    assert refused.value.code == "device-index"
