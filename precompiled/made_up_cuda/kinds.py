"""The kinds of GPU that the made-up device can be, as CUDA describes them.

What NVIDIA's data sheets and the CUDA programming guide's table of compute capabilities say, written from memory. The
H100's row is what PyTorch 2.11 reported on one, as are name, capability, number of multiprocessors and L2 size of the
H200; the others were never compared with one, clocks least of all. What torch tells of a device and a compile
depends on is in the key (graph/environment.py), so a wrong number here costs a hit and no result. But for the clocks,
which are in no key: a wrong one costs a choice. By the memory's, torch 2.15 decides some fusions
(torch/_inductor/scheduler.py, _reindexing_regresses_memory_coalescing); by the multiprocessors', whether a product is
worth padding (fx_passes/pad_mm.py, is_mm_compute_bound) and, where a pass asks for them, how long kernels take.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

_MIB = 1 << 20


@dataclass(frozen=True)
class Kind:
    """Sizes are in bytes. ``shared_*``: shared memory that a block may ask for, and of a multiprocessor."""

    code: str
    name: str  # as the driver writes it: it is in the key
    major: int
    minor: int
    multiprocessors: int
    memory: int
    threads: int  # of a multiprocessor
    shared_block: int
    shared_multiprocessor: int
    l2: int
    bus_bits: int
    memory_mhz: int  # two transfers each: 2 * memory_mhz * bus_bits / 8 is the data sheet's bandwidth
    sm_mhz: int  # of a multiprocessor, at most


KINDS = {
    kind.code: kind
    for kind in (
        Kind("t4", "Tesla T4", 7, 5, 40, 15_360 * _MIB, 1024, 65_536, 65_536, 4 * _MIB, 256, 5001, 1590),
        Kind("a100", "NVIDIA A100-SXM4-80GB", 8, 0, 108, 81_920 * _MIB, 2048, 166_912, 167_936, 40 * _MIB,
             5120, 1593, 1410),
        Kind("l4", "NVIDIA L4", 8, 9, 58, 23_034 * _MIB, 1536, 101_376, 102_400, 48 * _MIB, 192, 6251, 2040),
        Kind("h100", "NVIDIA H100 80GB HBM3", 9, 0, 132, 81_079 * _MIB, 2048, 232_448, 233_472, 50 * _MIB,
             5120, 2619, 1980),
        Kind("h200", "NVIDIA H200", 9, 0, 132, 143_771 * _MIB, 2048, 232_448, 233_472, 60 * _MIB, 6144, 3201, 1980),
        Kind("b200", "NVIDIA B200", 10, 0, 148, 183_359 * _MIB, 2048, 232_448, 233_472, 126 * _MIB, 8192, 3996, 1965),
    )
}  # fmt: skip

# How the UUID of each begins: the letters "madeup" (device.cpp). No GPU of a host has it, and no driver lists it.
UUID_PREFIX = "GPU-6d616465-7570-"
FIRST_UUID = UUID_PREFIX + "0000-0000-000000000001"


def like(properties: Any) -> str:
    """An element of CUDA_MADE_UP: a made-up device that says what this one does (torch.cuda.get_device_properties)."""
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
        memory_mhz=properties.memory_clock_rate // 1000,  # which is in kHz
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
