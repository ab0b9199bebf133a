"""Lists the kinds of GPU that the made-up device can be, as CUDA describes them.

Sources: NVIDIA's data sheets and the CUDA programming guide's table of compute capabilities, written from memory. On an
H100, PyTorch 2.11 reported the values of this table. On an H200, it reported the table's name, capability, number of
multiprocessors and L2 size. No clock, and no other value, was compared with a device.

Effect of a wrong number:

- The properties that a compile depends on, except clocks, are in the key (graph/environment.py). A wrong value causes a
  cache miss, never a wrong result.
- The key contains no clocks. A wrong clock may make Inductor choose slower code. torch 2.15 uses the memory's clock for
  some fusions (torch/_inductor/scheduler.py, _reindexing_regresses_memory_coalescing). torch uses the multiprocessors'
  clock to decide whether padding a product is worthwhile (fx_passes/pad_mm.py, is_mm_compute_bound), and to estimate
  how long kernels run.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

_MIB = 1 << 20


@dataclass(frozen=True)
class Kind:
    """One kind of GPU. Sizes are in bytes.

    ``shared_block`` is the shared memory that one block may use. ``shared_multiprocessor`` is the shared memory of one
    multiprocessor.
    """

    code: str
    name: str  # the name that the driver reports, because the key contains it
    major: int
    minor: int
    multiprocessors: int
    memory: int
    threads: int  # threads of one multiprocessor
    shared_block: int
    shared_multiprocessor: int
    l2: int
    bus_bits: int
    memory_mhz: int  # two transfers per cycle: 2 * memory_mhz * bus_bits / 8 is the data sheet's bandwidth
    sm_mhz: int  # the maximum clock of a multiprocessor


KINDS = {
    kind.code: kind
    for kind in (
        Kind("t4", "Tesla T4", 7, 5, 40, 15_360 * _MIB, 1024, 65_536, 65_536, 4 * _MIB, 256, 5001, 1590),
        Kind(
            "a100",
            "NVIDIA A100-SXM4-80GB",
            8,
            0,
            108,
            81_920 * _MIB,
            2048,
            166_912,
            167_936,
            40 * _MIB,
            5120,
            1593,
            1410,
        ),
        Kind("l4", "NVIDIA L4", 8, 9, 58, 23_034 * _MIB, 1536, 101_376, 102_400, 48 * _MIB, 192, 6251, 2040),
        Kind(
            "h100",
            "NVIDIA H100 80GB HBM3",
            9,
            0,
            132,
            81_079 * _MIB,
            2048,
            232_448,
            233_472,
            50 * _MIB,
            5120,
            2619,
            1980,
        ),
        Kind("h200", "NVIDIA H200", 9, 0, 132, 143_771 * _MIB, 2048, 232_448, 233_472, 60 * _MIB, 6144, 3201, 1980),
        Kind("b200", "NVIDIA B200", 10, 0, 148, 183_359 * _MIB, 2048, 232_448, 233_472, 126 * _MIB, 8192, 3996, 1965),
    )
}

# The first digits of each made-up UUID: the letters "madeup" (device.cpp). No real GPU has such a UUID.
UUID_PREFIX = "GPU-6d616465-7570-"
FIRST_UUID = UUID_PREFIX + "0000-0000-000000000001"


def like(properties: Any) -> str:
    """An element of CUDA_MADE_UP for a device with these properties (torch.cuda.get_device_properties)."""
    found = Kind(
        code="",
        name=properties.name,
        major=properties.major,
        minor=properties.minor,
        multiprocessors=properties.multi_processor_count,
        memory=properties.total_memory,
        threads=properties.max_threads_per_multi_processor,
        shared_block=properties.shared_memory_per_block_optin,
        shared_multiprocessor=properties.shared_memory_per_multiprocessor,
        l2=properties.L2_cache_size,
        bus_bits=properties.memory_bus_width,
        memory_mhz=properties.memory_clock_rate // 1000,  # memory_clock_rate is in kHz
        sm_mhz=properties.clock_rate // 1000,
    )
    return "|".join(map(str, astuple(found)[1:]))


def as_c() -> str:
    """The table as the elements of a C array, for device.h."""
    rows = []
    for kind in KINDS.values():
        row = ", ".join(f'"{value}"' if isinstance(value, str) else f"{value}ull" for value in astuple(kind))
        rows.append(f"    {{{row}}},\n")
    return "".join(rows)
