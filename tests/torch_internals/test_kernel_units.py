"""Tests that kernels compiled in one file have the machine code, or at least the values, of kernels that torch compiles
one by one.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import CppPythonBindingsCodeCache
from torch._inductor.cpp_builder import is_gcc

from benchmarks.measures.machine_code import have_equal_values, of_the_kernel
from precompiled.store.kernel_files import KernelFile
from precompiled.torch_internals.inductor import cpp_kernels
from precompiled.torch_internals.worker import kernel_units


class Model(torch.nn.Module):
    """A model with enough different kernels for a large unit: embeddings, attention, two kinds of norms, pooling."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(50, width)
        self.norm = torch.nn.LayerNorm(width)
        self.convolution = torch.nn.Conv2d(1, 8, 3)
        self.channels = torch.nn.BatchNorm2d(8)
        self.linear = torch.nn.Linear(width, 50)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.gelu(self.norm(self.embedding(indices)))
        scores = self.linear(torch.softmax(hidden @ hidden.transpose(-1, -2), -1) @ hidden)
        image = torch.relu(self.channels(self.convolution(hidden[:, None])))
        pooled = torch.nn.functional.max_pool2d(image, 2).permute(0, 2, 3, 1).contiguous().std(dim=(1, 2))
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), indices.flatten())
        return loss + torch.nn.functional.interpolate(image, scale_factor=0.5).sigmoid().mean() + pooled.sum()


class Keeps:
    """Builds kernels as torch does, and records their sources and the arguments of each kernel's first call."""

    def __init__(self) -> None:
        self.sources: list[tuple[list[str], str]] = []
        self.arguments: dict[str, tuple[Any, ...]] = {}

    def kernel(self, argtypes: list[str], source: str) -> Any:
        self.sources.append((argtypes, source))
        built = CppPythonBindingsCodeCache.load_pybinding(argtypes, source)

        def run(*arguments: Any) -> Any:
            self.arguments.setdefault(cpp_kernels.kernel_name(argtypes, source), arguments)
            return built(*arguments)

        return run

    def wrapper(self, options: dict[str, Any]) -> Any:
        raise NotImplementedError("no model here has cpp_wrapper")

    def all_named(self, compiler: AsyncCompile) -> None:
        pass


@pytest.fixture(scope="module")
def keeps() -> Keeps:
    """Returns the kernels of two training steps."""
    keeps = Keeps()
    torch.manual_seed(0)
    indices = torch.randint(50, (16, 64))
    threads = torch._inductor.config.patch({"cpp.threads": 2})  # more than one, so that kernels have parallel regions
    with threads, cpp_kernels.handled(keeps), torch._inductor.utils.fresh_cache():
        for width in (128, 96):
            torch.compile(Model(width))(indices).backward()
            torch.compiler.reset()
    return keeps


@pytest.mark.slow  # compiles each kernel twice
@pytest.mark.skipif(not is_gcc() or not shutil.which("objdump"), reason="compares what GCC makes, by objdump")
def test_kernels_built_together_have_the_code_or_the_values_of_single_builds(keeps: Keeps) -> None:
    sources = keeps.sources
    collector = kernel_units.KernelCollector()
    for argtypes, source in sources:
        collector.kernel(argtypes, source)
    native = collector.native()
    assert len(native.kernels) == len({cpp_kernels.kernel_name(*item) for item in sources}) >= 15
    assert len(native.files) < len(native.kernels)
    compared = transposing = differing = equal = 0
    for argtypes, source in sources:
        alone = Path(CppPythonBindingsCodeCache.load_pybinding(argtypes, source).__self__.__file__)
        name = cpp_kernels.kernel_name(argtypes, source)
        together = Path(collector.loaded(name).__self__.__file__)
        expected = of_the_kernel(alone, "kernel")
        found = of_the_kernel(together, cpp_kernels.module_name(name))
        transposes = "transpose_mxn" in source
        transposing += transposes
        if found != expected:
            differing += 1
            assert found.keys() == expected.keys()
            assert not [call for call in calls(found) if "transpose" in call]
            if not transposes:
                # With AVX512, the worker accepts a call of this one function (docs/decisions/0015).
                assert kernel_units._WIDE and "WelfordHelper" in source, f"the kernel {name[:12]} differs"
                assert {"welford_combine<" in call for call in calls(found) ^ calls(expected)} == {True}
            if "atomic_add" not in source:  # the order of these additions differs from call to call
                single = CppPythonBindingsCodeCache.load_pybinding(argtypes, source)
                assert have_equal_values(single, collector.loaded(name), keeps.arguments[name])
                equal += 1
        compared += len(expected)
    assert transposing, "no kernel that transposes was compared"
    assert equal or not differing, "no values were compared"
    assert compared > len(native.kernels), "no parallel region was compared"


def calls(functions: dict[str, list[str]]) -> set[str]:
    """The call instructions in these functions."""
    return {line for code in functions.values() for line in code if line.startswith("call")}


PLAIN = """
#include <torch/csrc/inductor/cpp_prefix.h>
EXTRA
extern "C" void kernel(float* out_ptr0)
{
    out_ptr0[0] = VALUE;
}
"""


def plain(value: int, extra: str = "") -> tuple[list[str], str]:
    return ["float*"], PLAIN.replace("VALUE", str(value)).replace("EXTRA", extra)


def built(*items: tuple[list[str], str]) -> tuple[kernel_units.Native, list[float]]:
    """Build these kernels with one collector. Returns the build's result, and the value that each kernel writes."""
    collector = kernel_units.KernelCollector()
    named = [collector.kernel(*item) for item in items]
    collector.all_named()
    out = torch.zeros(len(items))
    for number, kernel in enumerate(named):
        kernel(out[number:])
    return collector.native(), out.tolist()


@pytest.mark.integration
def test_kernel_with_its_own_directives_is_built_alone() -> None:
    native, values = built(plain(1), plain(2), plain(3, "#define HIDDEN\n#ifndef HIDDEN\nno C++\n#endif"))
    assert values == [1.0, 2.0, 3.0]
    assert sorted(list(native.kernels.values()).count(file) for file in native.files) == [1, 2]


@pytest.mark.integration
def test_conflicting_kernels_are_built_one_by_one(capfd: pytest.CaptureFixture[str]) -> None:
    # One file cannot contain both kernels, because they define the same linker symbol. Namespaces do not affect linker
    # symbols.
    native, values = built(plain(1, 'int x asm("same") = 1;'), plain(2, 'int x asm("same") = 2;'))
    assert values == [1.0, 2.0]
    assert len(native.files) == 2
    assert "CppCompileError" in capfd.readouterr().err


@pytest.mark.integration
def test_compiler_error_of_one_kernel_is_raised() -> None:
    collector = kernel_units.KernelCollector()
    for item in (plain(1), plain(2, "no C++")):
        collector.kernel(*item)
    collector.all_named()
    with pytest.raises(Exception, match="no C\\+\\+") as caught:
        collector.native()
    assert type(caught.value).__name__ == "CppCompileError"


@pytest.mark.integration
def test_kernels_of_a_found_file_are_not_built_and_not_searched_again() -> None:
    native, _ = built(plain(5), plain(6))
    ((digest, content),) = native.files.items()
    searched: list[set[str]] = []

    def find(names: Collection[str]) -> list[KernelFile]:
        searched.append(set(names))
        return [KernelFile(digest, content, frozenset(native.kernels))]

    collector = kernel_units.KernelCollector(find_kernels=find)
    out = torch.zeros(2)
    for number, item in enumerate((plain(5), plain(6))):
        kernel = collector.kernel(*item)
        collector.all_named()
        kernel(out[number:])
    assert out.tolist() == [5.0, 6.0]
    assert searched == [{cpp_kernels.kernel_name(*plain(5))}]
    assert collector.native() == kernel_units.Native(native.files, native.kernels, built=0, reused=2)


@pytest.mark.integration
def test_kernel_is_built_if_the_found_file_cannot_be_loaded(capfd: pytest.CaptureFixture[str]) -> None:
    content, name = b"not a library", cpp_kernels.kernel_name(*plain(7))
    file = KernelFile(hashlib.sha256(content).hexdigest(), content, frozenset({name}))
    collector = kernel_units.KernelCollector(find_kernels=lambda names: [file])
    kernel, out = collector.kernel(*plain(7)), torch.zeros(1)
    kernel(out)
    native = collector.native()
    assert (out.tolist(), native.built, native.reused) == ([7.0], 1, 0)
    assert file.digest not in native.files
    assert "cannot be loaded" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("count", "threads", "sizes"),
    [(1, 8, [1]), (15, 8, [15]), (16, 8, [8, 8]), (40, 2, [20, 20]), (100, 1, [50, 50]), (0, 2, [])],
)
def test_kernels_are_divided_into_units_of_similar_size(count: int, threads: int, sizes: list[int]) -> None:
    assert [len(part) for part in kernel_units.divide_kernels(range(count), threads)] == sizes
