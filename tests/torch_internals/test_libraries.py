"""Tests of operators in C++ libraries: which library registers an operator, which files count, what is refused."""

from __future__ import annotations

import ctypes
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import support_library_ops
import torch

from precompiled.core import files
from precompiled.core.errors import Bypass
from precompiled.torch_internals.graph import call_targets
from precompiled.torch_internals.user_code import custom_ops, dispatcher_registrations, shared_libraries

pytestmark = pytest.mark.integration

OPS = torch.ops.pc_library


@pytest.fixture(scope="module")
def extension() -> Iterator[Path]:
    """Builds and loads the extension. The extension stays loaded after the tests: a library cannot be unloaded."""
    with tempfile.TemporaryDirectory() as folder:
        path = support_library_ops.build(Path(folder)).resolve()
        torch.ops.load_library(str(path))
        yield path


@pytest.fixture
def started_later(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes the process appear to have started after the build of the library. Newer libraries are refused."""
    shared_libraries.content_digest.cache_clear()
    shared_libraries._digest.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(shared_libraries, "_earliest_load", lambda _: math.inf)
        yield
    shared_libraries.content_digest.cache_clear()
    shared_libraries._digest.cache_clear()


def refusal(operator: torch._ops.OpOverload) -> str:
    with pytest.raises(Bypass) as refused:
        call_targets.encode(operator)
    assert refused.value.code == "custom-op"
    return str(refused.value)


def test_library_of_an_operator_is_found_by_its_source_file(extension: Path) -> None:
    places = dispatcher_registrations.of("pc_library::scaled")
    assert {place.key for place in places} == {dispatcher_registrations.DEFINITION, "CPU", "Meta", "Autograd"}
    (file,) = {place.file for place in places}
    assert file == str(support_library_ops.SOURCE)
    assert shared_libraries.registering(file) == [str(extension)]
    (of_torch,) = {place.file for place in dispatcher_registrations.of("aten::mm") if place.key == "CPU"}
    assert of_torch and shared_libraries.registering(of_torch) == []


@pytest.mark.usefixtures("started_later")
def test_operator_is_encoded_with_its_library(extension: Path) -> None:
    operator = OPS.scaled.default
    encoded = call_targets.encode(operator)
    assert encoded[4] == str(extension) and encoded[6] == "Autograd Meta CPU"
    assert call_targets.decode(encoded) is operator
    with pytest.raises(ValueError, match="differ from the capture"):
        call_targets.decode([*encoded[:5], "0" * 64, encoded[6]])


def test_library_built_after_the_process_started_is_refused(extension: Path) -> None:
    with pytest.raises(Bypass, match="was saved after this process started") as refused:
        shared_libraries.digest(str(extension), code="custom-op")
    assert refused.value.code == "custom-op-edited"


def test_library_loaded_after_torch_was_loaded_after_the_hook(extension: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell may build the library and then execute Python in its own process, so the library is newer than the
    process. The executable and its libraries may have been loaded before the hook.
    """
    (libc,) = (path for path in shared_libraries._loaded(shared_libraries._changes()) if "/libc.so" in path)
    python = os.path.realpath(sys.executable)
    hook = files._Hook(math.inf, frozenset({"sys"}), frozenset())
    monkeypatch.setattr(files, "_hook", hook)
    assert shared_libraries._earliest_load(str(extension)) == math.inf
    for path in (libc, python, str(extension.parent / "not_loaded.so")):
        assert shared_libraries._earliest_load(path) == files.process_start()
    monkeypatch.setattr(files, "_hook", hook._replace(modules=frozenset({"torch._C"})))
    assert shared_libraries._earliest_load(str(extension)) == files.process_start()


@pytest.mark.usefixtures("started_later")
def test_dependencies_of_a_library_count_except_those_of_torch(extension: Path) -> None:
    found = shared_libraries._with_needed(str(extension), "custom-op", shared_libraries._changes())
    assert found == {str(extension), str(extension.parent / support_library_ops.NEEDED)}


def test_needed_libraries_equal_the_output_of_readelf(extension: Path) -> None:
    shown = subprocess.run(["readelf", "-d", str(extension)], capture_output=True, text=True, check=True).stdout
    found = shared_libraries._read(str(extension))
    assert list(found.needed) == re.findall(r"\(NEEDED\).*\[(.*)\]", shown)
    assert support_library_ops.NEEDED in found.needed and found.registers
    needed = shared_libraries._read(str(extension.parent / support_library_ops.NEEDED))
    assert (needed.name, needed.registers) == (support_library_ops.NEEDED, False)
    with pytest.raises(ValueError, match="no shared library"):
        shared_libraries._read(__file__)


@pytest.mark.usefixtures("extension")
def test_library_loaded_later_is_found(tmp_path: Path) -> None:
    before = shared_libraries._loaded(shared_libraries._changes())
    subprocess.run(
        ["g++", "-shared", "-x", "c++", "-", "-o", str(tmp_path / "later.so")], input="int f;", text=True, check=True
    )
    ctypes.CDLL(str(tmp_path / "later.so"))
    assert set(shared_libraries._loaded(shared_libraries._changes())) - set(before) == {
        str((tmp_path / "later.so").resolve())
    }


@pytest.mark.usefixtures("extension")
def test_operator_registered_at_an_unknown_place_is_refused() -> None:
    assert "the library that registered it at an unknown place" in refusal(OPS.unknown.default)


@pytest.mark.usefixtures("extension", "started_later")
def test_python_registrations_of_a_library_operator_count_or_are_refused() -> None:
    assert __name__ not in custom_ops.defining_modules(OPS.bare.default)[0]
    library = torch.library.Library("pc_library", "FRAGMENT")
    library.impl("bare", lambda x: x * 3, "CUDA")  # only compiled code runs this kernel, a compile does not
    assert __name__ not in custom_ops.defining_modules(OPS.bare.default)[0]
    library.impl("bare", torch.empty_like, "Meta")
    assert __name__ in custom_ops.defining_modules(OPS.bare.default)[0].split(",")
    library._destroy()
    assert __name__ not in custom_ops.defining_modules(OPS.bare.default)[0]
    with torch.library._scoped_library("pc_library", "FRAGMENT") as of_torchs:
        of_torchs.impl("bare", lambda x: x * 3, "AutogradCPU")
        assert "the code that registers AutogradCPU for it" in refusal(OPS.bare.default)


@pytest.mark.usefixtures("extension", "started_later")
def test_python_functions_are_found_behind_wrappers_of_torch() -> None:
    # The fake kernel is a C function without a module. The module that registers the kernel counts as a defining
    # module.
    torch.library.register_fake("pc_library::bare", torch.empty_like)
    assert __name__ in custom_ops.defining_modules(OPS.bare.default)[0].split(",")

    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 3

    backward.__module__ = "pc_backward"
    torch.library.register_autograd("pc_library::bare", backward)
    with pytest.raises(Bypass, match="the module pc_backward has no source file"):
        call_targets.encode(OPS.bare.default)
