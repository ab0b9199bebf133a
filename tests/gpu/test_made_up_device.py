"""Tests of the made-up device: its properties, its results, its log, and its refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from precompiled.made_up_cuda.kinds import KINDS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not os.environ.get("CUDA_MADE_UP"), reason="NOT TESTED: this host has no made-up device"),
]

# Operators that the made-up device refuses: those with sparse layouts, an operator of the CPU, and an operator whose
# sample is on the CPU.
REFUSED = {
    "sparse.mm.reduce",
    "to_sparse",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu",
    "tensor_split",
}


def run(code: str, state: Path, devices: str = "h100", **variables: str) -> str:
    """Run code in a separate process with made-up devices, and return its output. ``state``: their state and log."""
    state.mkdir(exist_ok=True)
    environment = {**os.environ, "CUDA_MADE_UP": devices, "CUDA_MADE_UP_STATE": str(state), **variables}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def events(state: Path) -> list[dict[str, Any]]:
    log = state / "log.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.mark.parametrize("code", list(KINDS))
def test_device_has_the_properties_of_its_kind(tmp_path: Path, code: str) -> None:
    names = (
        "name",
        "major",
        "minor",
        "multi_processor_count",
        "total_memory",
        "L2_cache_size",
        "shared_memory_per_block_optin",
        "clock_rate",
    )
    asked = f"import torch; p = torch.cuda.get_device_properties(0); print([getattr(p, name) for name in {names}])"
    kind = KINDS[code]
    expected = [
        kind.name,
        kind.major,
        kind.minor,
        kind.multiprocessors,
        kind.memory,
        kind.l2,
        kind.shared_block,
        kind.sm_mhz * 1000,
    ]
    assert run(asked, tmp_path, code).strip() == str(expected)


@pytest.mark.parametrize(
    ("visible", "kinds"),
    [
        (None, ["H100", "H100", "A100"]),
        ("", []),
        ("-1", []),
        ("2,0", ["A100", "H100"]),
        ("0,7,1", ["H100"]),
        ("GPU-6d616465-7570-0000-0000-000000000003", ["A100"]),
        ("GPU-6d616465-7570-0000-0000-000000000003,0", ["A100", "H100"]),
    ],
)
def test_visible_devices_are_selected_as_by_cuda(tmp_path: Path, visible: str | None, kinds: list[str]) -> None:
    asked = (
        "import torch; print([torch.cuda.get_device_name(i).split()[1][:4] for i in range(torch.cuda.device_count())])"
    )
    variables = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert run(asked, tmp_path, "h100,h100,a100", **variables).strip() == str(kinds)


def test_each_sampled_operator_equals_the_cpu() -> None:
    """Tests each operator with the first of torch's own samples (OpInfo). Only the operators in REFUSED may fail."""
    # The module with the samples forbids later changes of torch's flags, so it runs in a separate process.
    script = Path(__file__).parent.parent / "programs" / "operator_samples.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["wrong"] == {}
    assert len(report["equal"]) > 400
    assert not [why for why in report["refused"].values() if "INTERNAL ASSERT" in why]
    assert set(report["refused"]) <= REFUSED, report["refused"]


def test_large_memset_covers_exactly_its_range() -> None:
    for first, last in ((1, -1), (4096, 8_000_000), (3, 100_000), (0, 5)):
        of = torch.ones(10_000_000, dtype=torch.int8, device="cuda")
        of[first:last].zero_()
        expected = torch.ones(10_000_000, dtype=torch.int8)
        expected[first:last] = 0
        assert torch.equal(of.cpu(), expected)
    rows = torch.ones(3000, 3000, device="cuda")
    rows[:, ::2].zero_()
    assert torch.equal(rows.cpu(), torch.tensor([0.0, 1.0]).repeat(1500).expand(3000, 3000))


def test_grouped_attention_equals_attention_with_repeated_heads() -> None:
    made = [torch.randn(2, heads, 16, 32, device="cuda", requires_grad=True) for heads in (4, 2, 2)]
    operator = torch.ops.aten._scaled_dot_product_efficient_attention

    def results(*given: torch.Tensor) -> list[torch.Tensor]:
        out = operator(*given, None, True, 0.0, True)[0]
        return [out, *torch.autograd.grad(out.square().sum(), made)]

    repeated = results(made[0], *(one.repeat_interleave(2, 1) for one in made[1:]))
    torch.testing.assert_close(results(*made), repeated, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("code", ["t4", "a100", "h100", "b200"])  # on h100 and b200, torch prefers cuDNN's attention
def test_half_precision_attention_equals_the_cpu(tmp_path: Path, code: str) -> None:
    text = """if 1:
        import torch
        def results(device, dtype, causal):
            torch.manual_seed(0)
            made = [torch.randn(2, 16, 4, 32).to(device, dtype).transpose(1, 2).requires_grad_() for _ in range(3)]
            out = torch.nn.functional.scaled_dot_product_attention(*made, is_causal=causal)
            return [out.detach(), *torch.autograd.grad(out.float().square().sum(), made)]
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for causal in (False, True):
                for found, expected in zip(results("cuda", dtype, causal), results("cpu", torch.float32, causal)):
                    assert found.dtype == dtype
                    torch.testing.assert_close(found.cpu().float(), expected, rtol=0.05, atol=0.05)
        print("equal")
    """
    assert run(text, tmp_path, code) == "equal\n"


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_convolution_outputs_have_the_strides_that_inductor_assumes(dtype: torch.dtype) -> None:
    from torch._subclasses import FakeTensorMode

    def strides(tensor: torch.Tensor) -> list[tuple[int, int]]:
        """Returns the strides, except those of dimensions with one element, which are arbitrary."""
        return [(n, stride) for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]

    for size, weight, groups in (
        ((2, 8, 6, 6), (8, 1, 3, 3), 8),
        ((2, 8, 6, 6), (4, 8, 1, 1), 1),
        ((2, 8, 6), (8, 1, 3), 8),
        ((2, 8, 6), (4, 8, 3), 1),
        ((2, 3, 4, 4, 4), (4, 3, 2, 2, 2), 1),
    ):
        for last in (False, True) if len(size) == 4 else (False,):
            form = torch.channels_last if last else torch.contiguous_format
            x = torch.randn(size, dtype=dtype, device="cuda").to(memory_format=form)
            w = torch.randn(weight, dtype=dtype, device="cuda").to(memory_format=form)
            spatial = len(size) - 2

            def results(x: torch.Tensor, w: torch.Tensor, n: int = spatial, groups: int = groups) -> list[torch.Tensor]:
                ones, zeros = [1] * n, [0] * n
                out = torch.convolution(x, w, None, ones, zeros, ones, False, zeros, groups)
                backward = torch.ops.aten.convolution_backward(
                    out, x, w, None, ones, zeros, ones, False, zeros, groups, [True, True, False]
                )
                return [out, *backward[:2]]

            mode = FakeTensorMode()
            expected = [strides(fake) for fake in results(mode.from_tensor(x), mode.from_tensor(w))]
            found = results(x, w)
            assert [strides(one) for one in found] == expected, (size, weight, last)
            of_cpu = results(x.cpu().double(), w.cpu().double())
            for one, other in zip(found, of_cpu, strict=True):
                torch.testing.assert_close(one.cpu().double(), other, rtol=2e-2, atol=2e-2)


def test_histogram_of_integers_is_supported() -> None:
    found = torch.histc(torch.tensor([0, 2, 2, 3], dtype=torch.int32, device="cuda"), bins=4, min=0, max=3)
    assert found.tolist() == [1, 0, 2, 1] and found.dtype == torch.int32
    found = torch.histc(torch.tensor([0.0, 2.0, 2.0, 3.0], device="cuda"), bins=4, min=0, max=3)
    assert found.tolist() == [1, 0, 2, 1] and found.dtype == torch.float32


def test_out_of_memory_raises_the_error_of_torch(tmp_path: Path) -> None:
    text = """if 1:
        import torch
        try:
            kept = [torch.empty(1 << 33, dtype=torch.uint8, device="cuda") for _ in range(100)]
        except torch.OutOfMemoryError as error:
            print(str(error).partition(".")[0])
    """
    assert run(text, tmp_path) == "CUDA out of memory\n"


def test_real_gpus_of_the_host_are_ignored(tmp_path: Path) -> None:
    """torch.cuda.device_count reads NVML. A fake NVML reports two GPUs that do not exist on the made-up host."""
    (tmp_path / "nvml.c").write_text("""
        #include <string.h>
        int nvmlInit(void) { return 0; }
        int nvmlDeviceGetCount_v2(int* count) { *count = 2; return 0; }
        int nvmlDeviceGetHandleByIndex_v2(int index, void** device) { *device = (void*)(long)(index + 1); return 0; }
        int nvmlDeviceGetUUID(void* device, char* text, unsigned size) {
            strncpy(text, "GPU-00000000-0000-0000-0000-000000000000", size);
            return 0;
        }
    """)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "nvml.c"], check=True)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("LD_LIBRARY_PATH", "")])
    asked = (
        "import torch; before = torch.cuda.device_count(); torch.cuda.init(); "
        "print(before, torch.cuda.device_count(), torch.cuda.get_device_properties(0).major)"
    )
    for visible, count in (({}, 3), ({"CUDA_VISIBLE_DEVICES": "GPU-6d616465-7570-0000-0000-000000000003"}, 1)):
        said = run(asked, tmp_path / "state", "h100,h100,a100", LD_LIBRARY_PATH=paths, **visible)
        assert said.split()[:2] == [str(count), str(count)]


def test_random_numbers_follow_the_seed_of_the_device() -> None:
    torch.cuda.manual_seed(7)
    first = torch.rand(8, device="cuda")
    state = torch.cuda.get_rng_state()
    second = torch.rand(8, device="cuda")
    assert not torch.equal(first, second)
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(8, device="cuda"), second)
    torch.cuda.manual_seed(7)
    before = torch.random.get_rng_state()
    assert torch.equal(torch.rand(8, device="cuda"), first)
    assert torch.equal(torch.random.get_rng_state(), before), "the CPU's own numbers were drawn"


def test_operator_with_only_a_gpu_kernel_is_an_error(tmp_path: Path) -> None:
    code = """
import torch
x = torch.randn(5, 3, 10, device="cuda")
try:
    torch.nn.LSTM(10, 20, device="cuda")(x)  # cuDNN's, which the CPU does not have
except Exception as error:
    print(type(error).__name__)
else:
    print("it computed")
"""
    assert run(code, tmp_path).strip() != "it computed"


def test_timing_and_launches_during_a_compile_are_errors(tmp_path: Path) -> None:
    code = """
import torch
from precompiled.made_up_cuda.activate import compiling
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record(); end.record(); torch.cuda.synchronize()
print(start.elapsed_time(end))
with compiling() as refused:
    try:
        start.elapsed_time(end)
    except Exception as error:
        print(type(error).__name__, refused())
print(start.elapsed_time(end))
with compiling() as refused:
    print([refused()])
"""
    assert run(code, tmp_path).split("\n")[:-1] == ["1.0", "AcceleratorError a measured time", "1.0", "['']"]
    assert [event["what"] for event in events(tmp_path)] == ["a measured time"]


FOLDED = """
import torch

def masked(x):
    hidden = torch.full((16, 16), float("-inf"), device="cuda").triu(1)
    return (x.masked_fill(torch.zeros_like(x, dtype=torch.bool), float("-inf")) + hidden).softmax(-1)

from torch._inductor.utils import run_and_get_code
_, (code, *_) = run_and_get_code(torch.compile(masked), torch.randn(16, 16, device="cuda"))
print(code)
"""


def test_constants_folded_on_the_device_are_right(tmp_path: Path) -> None:
    # Inductor folds constants with operators of the device. If these operators computed nothing, the code would contain
    # values of uninitialised memory.
    import re

    code = run(FOLDED, tmp_path / "state", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "inductor"))
    constants = {
        float(value)
        for value in re.findall(r"tl\.full\(\[[^]]*\], (-?[\d.e+-]+|float\('-inf'\)), tl\.float32", code)
        if "inf" not in value
    }
    assert constants <= {0.0, 1.0}, constants


def test_kernels_are_loaded_by_architecture_and_launches_are_logged(tmp_path: Path) -> None:
    code = """
import torch
f = torch.compile(lambda x: (x * 2).sin() + 1)
for device in range(torch.cuda.device_count()):
    with torch.cuda.device(device):
        f(torch.randn(4096, device=f"cuda:{device}"))
"""
    run(code, tmp_path / "state", "h100,a100", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "inductor"))
    logged = events(tmp_path / "state")
    assert {(event["device"], event["architecture"]) for event in logged if event["event"] == "load"} == {
        (0, 90),
        (1, 80),
    }
    assert {event["device"] for event in logged if event["event"] == "launch"} == {0, 1}
    assert not [event for event in logged if event["event"] == "refused"]


@pytest.mark.parametrize("code", ["t4", "a100", "h100", "b200"])  # one kind for each ELF format of CUDA
def test_kernel_facts_of_a_cubin_equal_those_of_cuobjdump(tmp_path: Path, code: str) -> None:
    tool = next(Path(torch.__file__).parent.parent.glob("triton/backends/nvidia/bin/cuobjdump"), None)
    if tool is None:
        pytest.skip("NOT TESTED: triton brings no cuobjdump")
    # The program calls the driver as Triton does. One of the program's kernels needs more registers than a warp has,
    # and spills.
    text = """if 1:
        import ctypes, json, os, pathlib, torch, triton, triton.language as tl
        torch.compile(lambda x: x.softmax(-1) @ x)(torch.randn(64, 64, device="cuda"))
        @triton.jit
        def spills(source, target):
            at = tl.arange(0, 16384)
            values = tl.load(source + at)
            tl.store(target + at, values * tl.sum(values))
        x = torch.randn(16384, device="cuda")
        spills[(1,)](x, x, num_warps=1)
        library = ctypes.CDLL("libcuda.so.1")
        for cubin in pathlib.Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin"):
            name = json.loads(cubin.with_suffix(".json").read_text())["name"]
            module, function, value = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
            assert library.cuModuleLoad(ctypes.byref(module), str(cubin).encode()) == 0
            assert library.cuModuleGetFunction(ctypes.byref(function), module, name.encode()) == 0
            asked = []
            for which in (4, 3):  # CU_FUNC_ATTRIBUTE_NUM_REGS, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
                assert library.cuFuncGetAttribute(ctypes.byref(value), which, function) == 0
                asked.append(value.value)
            print(json.dumps([str(cubin), *asked]))
    """
    script = tmp_path / "program.py"
    script.write_text(text)
    caches = {name: str(tmp_path / name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
    output = run(f"import runpy; runpy.run_path({str(script)!r})", tmp_path / "state", code, **caches)
    found = [json.loads(line) for line in output.splitlines()]
    assert len(found) >= 2
    for cubin, registers, local in found:
        said = subprocess.run([tool, "--dump-resource-usage", cubin], capture_output=True, text=True, check=True).stdout
        assert [registers, local] == [int(said.split(f"{what}:")[1].split()[0]) for what in ("REG", "STACK")], said
    assert any(local for _cubin, _registers, local in found), "no kernel spills"


def test_function_of_another_devices_module_cannot_be_launched(tmp_path: Path) -> None:
    code = """
import ctypes, sys, torch
torch.cuda.init()
library = ctypes.CDLL("libcuda.so.1")
module, function = ctypes.c_void_p(), ctypes.c_void_p()
torch.cuda.set_device(0)
assert library.cuModuleLoad(ctypes.byref(module), sys.argv[1].encode()) == 0
assert library.cuModuleGetFunction(ctypes.byref(function), module, sys.argv[2].encode()) == 0
print(library.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, None, None))
torch.cuda.set_device(1)
print(library.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, None, None))
"""
    compile_one = 'import torch; torch.compile(lambda x: x.sin() * 3)(torch.randn(4096, device="cuda"))'
    run(compile_one, tmp_path / "state", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "inductor"))
    cubin = next((tmp_path / "inductor").rglob("*.cubin"))
    environment = {**os.environ, "CUDA_MADE_UP": "h100,h100", "CUDA_MADE_UP_STATE": str(tmp_path / "state")}
    done = subprocess.run(
        [sys.executable, "-c", code, str(cubin), cubin.stem],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["0", "400"], done.stderr  # CUDA_ERROR_INVALID_HANDLE


def test_lost_device_raises_at_the_next_call(tmp_path: Path) -> None:
    code = """
import os, torch
x = torch.ones(4, device="cuda")
open(os.environ["CUDA_MADE_UP_STATE"] + "/lost-0", "w").close()
try:
    torch.cuda.synchronize()
except Exception as error:
    print("lost" in str(error))
"""
    assert run(code, tmp_path).strip() == "True"
    assert (
        subprocess.run(
            ["nvidia-smi", "-L"],
            env={**os.environ, "CUDA_MADE_UP": "h100,l4", "CUDA_MADE_UP_STATE": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        == "GPU 1: NVIDIA L4 (UUID: GPU-6d616465-7570-0000-0000-000000000002)\n"
    )


def test_child_of_a_worker_has_the_device_and_measures_nothing(tmp_path: Path) -> None:
    """A child process of a worker must have the made-up device without a `.pth` file, as in a user's environment (-S).

    Timing on the made-up device must be refused in the worker and in its child.
    """
    measures = """
import torch
begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
print(torch.cuda.get_device_name(0), torch.cuda.device_count())
try:
    print(begin.record(), end.record(), begin.elapsed_time(end))
except torch.AcceleratorError:
    print("refused")
"""
    worker = f"""
import subprocess, sys
from precompiled import compiler
compiler.warm_up()
from precompiled.graph import environment
# The worker sets variables for its child processes. A key must not contain these variables, because a client does not
# have them.
print(environment.facts("cuda:0", uses_cpu=True, of_a_worker=True)["variables"], flush=True)
exec({measures!r})
sys.stdout.flush()
subprocess.run([sys.executable, "-S", "-c", {measures!r}], check=True)
"""
    environment = {
        **os.environ,
        "CUDA_MADE_UP": "h100,a100",
        "CUDA_MADE_UP_STATE": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)]),
    }
    done = subprocess.run(
        [sys.executable, "-S", "-c", worker], env=environment, capture_output=True, text=True, check=False
    )
    lines = [f"{KINDS['h100'].name} 2", "refused"]
    assert done.stdout.splitlines() == ["{}", *lines, *lines], done.stdout + done.stderr


def test_used_memory_includes_all_processes(tmp_path: Path) -> None:
    hold = """
import sys, torch
x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""
    environment = {**os.environ, "CUDA_MADE_UP": "h100", "CUDA_MADE_UP_STATE": str(tmp_path)}
    free = "import torch; print(torch.cuda.mem_get_info()[0])"
    before = int(run(free, tmp_path))
    holder = subprocess.Popen(
        [sys.executable, "-c", hold], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    assert before - int(run(free, tmp_path)) >= 1 << 30
    holder.communicate()
    assert int(run(free, tmp_path)) == before
