"""Tests of packages with the oldest and the newest torch: the parts of Dynamo that packages/dynamo relies on."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from packages.cases import TRACED, USED
from packages.cases.never_kept import NEVER
from support_host import Host
from support_packages import CASES, LAST, run, write

pytestmark = pytest.mark.versions

VERSIONS = ("2.11.0", "2.15.0")  # tests/packages/test_package_soundness.py covers the everyday version
PARTS = 3  # each part stays within a test's time limit on a busy machine
# In these cases, this torch computes incorrectly, raises, or breaks the graph, so there is nothing to record.
NOT_IN = {
    "2.11.0": (
        "attribute_that_a_tensor_had_not",
        "closure_of_a_subclass_of_a_function",
        "method_that_gives_members_of_a_set",
        "names_of_an_object_0",
        "names_of_an_object_1",
        "names_of_an_object_2",
        "order_of_attributes",
        "package_that_is_not_installed",
        "subclass_of_a_function",
        "value_among_the_builtins",
        "what_has_no_order_in_a_set_9",
    ),
    # torch 2.15.0 ignores a class's property __class__, so plain torch.compile takes a branch that eager does not take.
    "2.15.0": ("native_call_class_class_property", "native_call_class_class_property_again"),
}
# With this torch, these cases give a package, although never_kept.py lists them for the everyday version.
KEPT_IN = {
    "2.11.0": ["a_region_like_another"],
    "2.15.0": ["key_of_a_max", "key_of_a_max_that_is_a_class"],
}
# The outcome of a case in the later process, where it differs from the outcome with the everyday version.
EXPECTED = {
    "2.11.0": dict.fromkeys(  # in torch 2.11.0, the bytecode needs no module
        ("module_that_the_bytecode_needs_by_another_name", "module_that_the_bytecode_needs_is_gone"), USED
    ),
    # On torch 2.15, frames with torch.func.jvp are traced in each process (docs/explanation/packages.md).
    "2.15.0": {"namedtuple_of_a_transform": TRACED},
}


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("version", VERSIONS)
def test_package_cases_are_right_on_each_version(
    host: Host, python_of: Callable[[str], str], version: str, part: int
) -> None:
    python = python_of(version)
    host.start_daemon()
    write(host.root / "before", after=False)
    write(host.root / "after", after=True)
    # Sort the cases, because their order depends on which test module pytest imports first.
    of_version = sorted(CASES.keys() - NOT_IN.get(version, ()), key=lambda name: (name in LAST, name))
    cases = {name: CASES[name] for name in of_version[part::PARTS]}
    first = run(host, python, host.root / "before", list(cases))
    later = run(host, python, host.root / "after", list(cases))
    wrong = {}
    for name, case in cases.items():
        before, after = first[name], later[name]
        kept = {"traced"} if name in NEVER and name not in KEPT_IN.get(version, ()) else {"recorded"}
        states = set(after["states"])
        if EXPECTED.get(version, {}).get(name, case.expected) == USED:
            as_expected = states <= {"used", "skipped"} and after["frames"] == {}
        else:
            # A frame that Dynamo leaves to Python is right for any value. If a frame has a graph break, the package of
            # its first part may be used.
            as_expected = states == {"skipped"} or not states <= {"used", "skipped"}
        right = set(before["states"]) == kept and as_expected
        # torch 2.11 cannot trace some functions of classes that Dynamo calls, and leaves them to Python in each
        # process.
        skipped = any(message == "skipped" for _code, message, *_more in before["reasons"])
        by_python = version == "2.11.0" and skipped and states in ({"skipped"}, {"skipped", "used"})
        right = before["equal"] and after["equal"] and (right or by_python)
        if not right:
            wrong[name] = (before, after)
    assert not wrong, json.dumps(wrong, indent=1)
