"""Tests of the sentences that describe how a package differs from the current process.

Such a sentence names the guard, its value in this process, and its value when the package was recorded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from precompiled.packages.describe import difference
from precompiled.packages.describe.descriptions import Descriptions
from precompiled.packages.nearest_entry import TriedEntry, nearest_first
from precompiled.store.package_format import About, GuardText, Header, are_of_other_files, files_of
from precompiled.store.packages import Entry

TENSOR = ["class", "torch", "Tensor", "a" * 64]


def tensor(dtype: str = "torch.float32", number: int = 0, **marks: str) -> list[Any]:
    return [[TENSOR, dtype, "cpu", "torch.strided", True, "keys", marks, 0, True], number]


def net(code: str, name: str = "Net") -> list[str]:
    return ["class", "m", name, code * 64]


@pytest.mark.parametrize(
    ("kind", "here", "before", "said"),
    [
        ("CONSTANT_MATCH", ["int", "3"], ["int", "4"], "3 here, 4 there"),
        ("CONSTANT_MATCH", ["int", "3"], ["str", "'a'"], "3 here, 'a' there"),
        (
            "EQUALS_MATCH",
            ["list", [["int", "1"], ["int", "2"]]],
            ["list", [["int", "1"], ["int", "5"]]],
            "2 here, 5 there",
        ),
        ("TENSOR_MATCH", tensor("torch.bfloat16"), tensor(), "dtype torch.bfloat16 here, torch.float32 there"),
        ("TENSOR_MATCH", tensor(_dynamo_dynamic_indices="[0]"), tensor(), "dimension marks {'_dynamo_dynamic_indices'"),
        ("TENSOR_MATCH", tensor(number=1), tensor(number=3), "it is a different object of the call"),
        ("TYPE_MATCH", [net("a"), 0, 1, [], None], [net("b"), 0, 1, [], None], "the code of m.Net differs"),
        (
            "TYPE_MATCH",
            [net("a", "Sub"), 0, 1, [], None],
            [net("b"), 0, 1, [], None],
            "class m.Sub here, class m.Net there",
        ),
        (
            "TYPE_MATCH",
            [TENSOR, 0, 1, [], {"_forward_hooks": []}],
            [TENSOR, 0, 1, [], None],
            "hooks {'_forward_hooks': []} here, None there",
        ),
        (
            "TYPE_MATCH",
            [TENSOR, 0, 1, ["a", "b"], None],
            [TENSOR, 0, 1, ["b", "c"], None],
            "attributes ['a'] here, ['c'] there",
        ),
        ("SEQUENCE_LENGTH", [TENSOR, 3, 0], [TENSOR, 4, 0], "length 3 here, 4 there"),
        ("HASATTR", True, False, "True here, False there"),
        (
            "DICT_KEYS_MATCH",
            [["class", "builtins", "dict", "a"], [["str", "'a'"]]],
            [["class", "builtins", "dict", "a"], [["str", "'a'"], ["str", "'b'"]]],
            "['a'] here, ['a', 'b'] there",
        ),
    ],
)
def test_difference_of_one_guard_is_described_and_shortened(kind: str, here: Any, before: Any, said: str) -> None:
    found = difference.fact(kind, here, before).said("there")
    assert said in found
    assert len(found) < 2 * difference.MAX_CHARS + 100


def make(default: int = 1, held: int = 2, attribute: int = 3) -> Any:
    def f(x: int, y: int = default, *, z: int = default) -> int:
        return x + y + z + held

    f.mark = attribute  # type: ignore[attr-defined, unused-ignore]
    return f


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"default": 7}, "the defaults of m.f: 7 here, 1 there"),
        ({"held": 7}, "the closure of m.f: 7 here, 2 there"),
        ({"attribute": 7}, "the attributes of m.f: 7 here, 3 there"),
    ],
)
def test_part_of_a_function_that_differs_is_named(change: dict[str, int], said: str) -> None:
    one, other = ([Descriptions().function(make(**values)), 0] for values in (change, {}))
    assert difference.fact("ID_MATCH", one, other).said("there") == said.replace(
        "m.f", f"{__name__}.{make().__qualname__}"
    )


def test_closure_of_a_function_of_torch_that_differs_is_named() -> None:
    """torch.no_grad() as a decorator returns a function of torch's that closes over the decorated one."""
    one, other = ([Descriptions().function(torch.no_grad()(make(held=held))), 0] for held in (7, 2))
    assert "the closure of " in difference.fact("ID_MATCH", one, other).said("there")


ON = '{"grad_mode": true, "dtype": 1}'


def entry(value: str = "2.0", size: Any = (4, 4), state: str = ON, code: str = "a", torch: str = "2.13.0") -> Any:
    header = Header("0" * 64, "m", "Net.forward", "a" * 64, False, "compiled", {"torch": torch})
    about = About(
        guards=[
            GuardText("L['self'].alpha", "EQUALS_MATCH", "", ["float", value], "/project/m.py:3, in forward"),
            GuardText("", "GRAD_MODE", "", None, ""),
        ],
        inlined=[["helpers.g", code]],
        sizes={"L['x']": None if size is None else list(size)},
        state=state,
    )
    return header, About.parse(about.to_bytes())


@pytest.mark.parametrize(
    ("newer", "said"),
    [
        (entry("3.0"), ["L['self'].alpha: 3.0 here, 2.0 there (/project/m.py:3, in forward)"]),
        (entry(size=(6, None)), ["L['x']: sizes [6, any] here, [4, 4] there"]),
        (entry(size=None), ["L['x']: sizes any here, [4, 4] there"]),
        (entry(state="off"), ["the global state differs (grad mode, autocast, precision, threads)"]),
        (entry(state=ON.replace("true", "false")), ["global state: grad mode False here, True there"]),
        (entry(code="b"), ["the source of helpers.g differs"]),
        (entry(torch="2.15.0"), ["torch: 2.15.0 here, 2.13.0 there"]),
        (entry(), []),
    ],
)
def test_difference_of_two_entries_is_described(newer: Any, said: list[str]) -> None:
    assert [str(item) for item in difference.entries(newer, entry())] == said


def test_a_number_that_is_a_constant_in_one_entry_only_is_a_difference() -> None:
    """After a call with a different int, Dynamo traces again with a dynamic number. The new entry has a guard only on
    the number's type.
    """

    def of(kind: str, fact: Any) -> Any:
        header, about = entry()
        about.guards.append(GuardText("L['n']", kind, "", fact, "/project/m.py:4, in forward"))
        return header, About.parse(about.to_bytes())

    fixed = of("CONSTANT_MATCH", ["int", "0"])
    dynamic = of("TYPE_MATCH", [["class", "builtins", "int", "a" * 64], 0, None, [], None, None])
    other = of("TYPE_MATCH", [TENSOR, 0, None, [], None, None])
    at = "(/project/m.py:4, in forward)"
    assert [str(item) for item in difference.entries(dynamic, fixed)] == [f"L['n']: any int here, 0 there {at}"]
    assert [str(item) for item in difference.entries(fixed, dynamic)] == [f"L['n']: 0 here, any int there {at}"]
    assert all(item.is_value for item in difference.entries(fixed, dynamic))
    assert difference.entries(dynamic, dynamic) == difference.entries(other, fixed) == []


def test_function_of_a_main_program_is_identified_by_its_file() -> None:
    """An entry's guards name the files of all functions with the entry's function name, so an entry may have several
    files. Two entries with a common file count as entries of the same main program.
    """

    def files(*places: str, module: str = "__main__") -> set[str]:
        header = Header("", module, "Net.forward", "", False, "compiled")
        return files_of(header, About([GuardText("", "", "", None, place) for place in places]))

    main = files("", "/a/blocks.py:4, in forward", "/a/train.py:9, in forward", "/a/train.py:2, in step")
    assert main == {"/a/blocks.py", "/a/train.py"} and not are_of_other_files(main, {"/a/train.py"})
    assert are_of_other_files(main, files("/a/test_net.py:9, in forward"))
    unknown = [
        files(),
        files("/tmp/ipykernel_7/123.py:1, in forward"),
        files("<string>:1, in forward"),
        files("/b/train.py:9, in forward", module="net"),
    ]
    assert not any(are_of_other_files(main, other) for other in unknown)


def test_reasons_of_a_trace_begin_with_the_nearest_entry() -> None:
    def header_and_about(**values: int) -> tuple[Header, About]:
        guards = [
            GuardText(f"L['{name}']", "EQUALS_MATCH", "", ["int", str(value)], "") for name, value in values.items()
        ]
        return Header("f", "m", "f", "c", False, "compiled"), About(guards=guards)

    def tried(reason: str, **values: int) -> TriedEntry:
        header, about = header_and_about(**values)
        return TriedEntry(Entry(Path("a"), header, about.to_bytes(), b""), reason)

    header, about = header_and_about(a=1, b=2, c=3)
    made = header, about.to_bytes()
    newest, near = tried("newest", a=7, b=8, c=9), tried("its length", a=1, b=2, c=4)
    reasons = nearest_first(made, [newest, near], ["newest", "its length", "another reason"])
    assert reasons == (
        "L['c']: 3 here, 4 when it was traced",
        "L['a']: 1 here, 7 when it was traced",
        "another reason",
    )


def test_skipped_frame_and_sizes_in_memory_are_not_nearest() -> None:
    """A skipped frame's entry has no guards, and a fresh trace's sizes are tuples, which JSON stores as lists."""

    def tried(reason: str, sizes: dict[str, Any], kind: str = "compiled") -> TriedEntry:
        header = Header("f", "m", "f", "c", False, kind)
        return TriedEntry(Entry(Path("a"), header, About(sizes=sizes).to_bytes(), b""), reason)

    weights = {f"L['{name}']": (4, 6) for name in "abc"}
    made = Header("f", "m", "f", "c", False, "compiled"), About(sizes={**weights, "L['x']": (12,)}).to_bytes()
    skipped, other = tried("skipped", {}, "skipped"), tried("other model", {"L['x']": (8,), "L['a']": (5, 6)})
    near = tried("its size", {**weights, "L['x']": (8,)})
    reasons = ["skipped", "other model", "its size"]
    assert nearest_first(made, [skipped, other, near], reasons) == ("its size", "other model", "skipped")
