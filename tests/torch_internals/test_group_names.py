"""Tests that an artifact refers to process groups by number, and that a client replaces the numbers by its names."""

from __future__ import annotations

import pytest
import torch
from support_graphs import captured

from precompiled.core.errors import Bypass
from precompiled.torch_internals.ranks.group_names import for_a_client, moved_text, numbered_name

WRAPPER = """
# precompiled-group-0 in a comment stays
def call(args):
    ä = torch.ops._c10d_functional.all_reduce(b, 'sum', 'precompiled-group-0'); b = op(ö, 'precompiled-group-1')
    return op(ä, 'precompiled-group-0', group_name="precompiled-group-10", other='0')
"""
MOVED = """
# precompiled-group-0 in a comment stays
def call(args):
    ä = torch.ops._c10d_functional.all_reduce(b, 'sum', '7'); b = op(ö, 'it\\'s "one"')
    return op(ä, '7', group_name='k', other='0')
"""


def test_only_group_names_are_replaced() -> None:
    assert moved_text(WRAPPER, ["7", 'it\'s "one"', *"bcdefghijk"[1:]]) == MOVED


def test_names_that_look_like_numbers_are_replaced_once() -> None:
    code = "op('precompiled-group-0', 'precompiled-group-1')"
    swapped = [numbered_name(1), numbered_name(0)]
    assert moved_text(code, swapped) == "op('precompiled-group-1', 'precompiled-group-0')"
    zero, one = numbered_name(0), numbered_name(1)
    assert for_a_client([{zero: [one, 1]}], swapped) == [{one: [zero, 1]}]


def test_name_split_into_two_literals_is_replaced() -> None:
    assert moved_text("'precompiled-' 'group-0'", ["7"]) == "'7'"


@pytest.mark.reason("collective")
@pytest.mark.parametrize(
    "code", ["'precompiled-group-2'", "f('x = \"precompiled-group-0\"')", "op('precompiled-'\n'group-0')"]
)
def test_group_name_in_an_unknown_place_is_refused(code: str) -> None:
    with pytest.raises(Bypass) as refused:
        moved_text(code, ["7", "8"])
    assert refused.value.code == "collective"


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_key_depends_on_the_order_of_groups_not_on_their_names(one_rank: None) -> None:
    dist, ours = torch.distributed, torch.distributed._functional_collectives
    groups = [dist.group.WORLD, *(dist.new_group([0]) for _ in range(3))]

    def program(first: int, second: int) -> tuple[str, tuple[str, ...]]:
        def reduced(x: torch.Tensor) -> torch.Tensor:
            return ours.all_reduce(ours.all_reduce(x, "sum", groups[first]), "sum", groups[second])

        found = captured(reduced, torch.ones(3)).program
        return found.sections["graph"] + found.sections["modes"], found.groups

    names = [group.group_name for group in groups]
    same, different = program(2, 2), program(0, 1)
    assert same[1] == (names[2],) and different[1] == (names[0], names[1])
    assert program(3, 3)[0] == same[0] and program(2, 1)[0] == different[0] != same[0]
