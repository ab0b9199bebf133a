"""Tests that a package is used if and only if a trace would give the same result, and that outputs equal eager's.

One process records the selected cases (tests/packages/cases). A second process runs their later sources and may use the
packages. A third process, the audit, traces the cases again and compares each trace with the package.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
from packages.cases import USED
from packages.cases.never_kept import NEVER
from support_host import Host
from support_packages import CASES, EVERYDAY, run, write
from support_slow import everyday_or_slow

pytestmark = pytest.mark.integration

TABLE = everyday_or_slow(CASES, (*EVERYDAY, *NEVER))


def selected(request: pytest.FixtureRequest) -> list[str]:
    """Returns the names of the cases that the selected tests need."""
    items = [item for item in request.session.items if item.path == request.path and isinstance(item, pytest.Function)]
    wanted = {item.callspec.params["name"] for item in items}
    return [name for name in CASES if name in wanted]


@pytest.fixture(scope="module")
def recorded(shared_host: Host, request: pytest.FixtureRequest) -> tuple[Host, dict[str, Any]]:
    write(shared_host.root / "before", after=False)
    return shared_host, run(shared_host, sys.executable, shared_host.root / "before", selected(request))


@pytest.fixture(scope="module")
def later(recorded: tuple[Host, dict[str, Any]]) -> dict[str, Any]:
    host, first = recorded
    write(host.root / "after", after=True)
    return run(host, sys.executable, host.root / "after", list(first))


@pytest.fixture(scope="module")
def audited(later: dict[str, Any], recorded: tuple[Host, dict[str, Any]]) -> dict[str, Any]:
    host = recorded[0]
    return run(host, sys.executable, host.root / "after", list(later), audit=True)


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.reason(
    "package-assumed-constant",
    "package-global",
    "package-graph",
    "package-id",
    "package-inlined",
    "package-mode",
    "package-native-call",
    "package-not-portable",
    "package-set-order",
)
def test_case_is_recorded_or_refused_with_its_reason(recorded: tuple[Host, dict[str, Any]], name: str) -> None:
    found = recorded[1][name]
    assert "error" not in found, found["error"]
    assert found["equal"]
    assert set(found["states"]) == ({"traced"} if name in NEVER else {"recorded"}), found
    if name in NEVER:
        code, said = SAID[name]
        assert code == NEVER[name]
        for reason, message, *_of_entries in found["reasons"]:
            assert (reason, said in message) == (code, True), found


# For each case of NEVER, the code of its reason and a part of the message.
SAID = {
    "asks_for_id": ("package-id", "f calls id(), whose result is specific to this process"),
    "a_class_of_exec": ("package-inlined", "G.__enter__ was inlined, and its code cannot be found by name"),
    "frozen_weights": ("package-graph", "a graph of it is for this process alone"),
    "inputs_that_overlap": ("package-graph", "a graph of it is for this process alone"),
    "a_random_number": ("package-global", "into the globals"),
    "module_as_a_default": ("package-not-portable", "is read through a class or a function that holds it"),
    "native_call_that_reads_the_environment": ("package-native-call", "that function reads the module os"),
    "native_call_with_a_tensor_as_a_default": ("package-native-call", "gets an object that cannot be compared"),
    "native_call_that_is_given_a_lock": ("package-native-call", "that function reads _thread.lock"),
    "native_call_that_reads_a_getter": ("package-native-call", "that function reads os.getenv"),
    "native_call_that_reads_a_file": ("package-native-call", "that function uses open"),
    "native_call_that_reads_an_import": ("package-native-call", "that function uses __import__"),
    "native_call_that_reads_a_path": ("package-native-call", "that function reads pathlib.PosixPath"),
    "native_call_that_reads_a_memo": ("package-native-call", "that function reads the memo of scale"),
    "native_call_that_reads_a_memo_in_a_class": ("package-native-call", "may read the memo of Scales.scale"),
    "native_call_that_reads_a_memo_in_a_table": ("package-native-call", "that function may read the memo of scale"),
    "native_call_that_reads_a_getter_in_a_table": ("package-native-call", "that function may read os.getenv"),
    "native_call_that_reads_a_getter_in_an_object": ("package-native-call", "that function may read os.getenv"),
    "hook_that_is_a_method": ("package-not-portable", "the method 'Scaled.hook' is bound to an object"),
    "hook_that_is_a_partial_of_a_method": ("package-not-portable", "the method 'Scaled.hook' is bound to an object"),
    "a_device_context": ("package-mode", "traced under a torch function mode"),
    "method_that_gives_members_of_a_set": ("package-not-portable", "'frozenset.union' is bound to an object"),
    "order_of_a_set": ("package-set-order", "whose order differs between processes"),
    "a_set_that_is_gone_through": ("package-set-order", "G['NAMES'] is a set, whose order differs"),
    **{
        f"order_of_texts_in_a_set_{number}": ("package-set-order", "whose order differs between processes")
        for number in range(22)
    },
    "asks_for_hash": ("package-id", "f calls hash(), whose result is specific to this process"),
    "asks_for_a_seed": ("package-id", "seed() returned a number in the trace"),
    "a_metaclass_that_decides": ("package-not-portable", "Meta decides the result of isinstance()"),
    "module_in_a_default": ("package-not-portable", "is read through a class or a function that holds it"),
    "a_protocol_of_values": ("package-not-portable", "of the protocol Scaled is not said by classes alone"),
    "a_hook_of_subclasses": ("package-not-portable", "Scaled.__subclasshook__ reads the global WANTED"),
    "a_set_that_is_changed": ("package-set-order", "the frame changes a set"),
    "order_of_a_set_that_is_made": ("package-set-order", "a set that a trace makes"),
    "a_union_with_a_hook": ("package-not-portable", "Scaled.__subclasshook__ reads the global WANTED"),
    "key_of_a_max": ("package-not-portable", "the key of a max() is run untraced"),
    "key_of_a_max_that_is_a_class": ("package-not-portable", "the key of a max() is run untraced"),
    "a_region_like_another": ("package-not-portable", "Dynamo reused the trace of an earlier region"),
    "assumed_constant_of_a_local": (
        "package-assumed-constant",
        "is assumed to return a constant: it cannot be found by name",
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_package_is_used_exactly_where_it_is_valid(later: dict[str, Any], name: str) -> None:
    found = later[name]
    assert "error" not in found, found["error"]
    assert found["equal"], found
    if CASES[name].expected == USED:
        assert set(found["states"]) <= {"used", "skipped"} and found["states"], found
        assert (found["frames"], found["graphs"]) == ({}, 0)
    else:
        assert "used" not in found["states"], found


# Cases that the audit cannot compare, mostly for one of these reasons:
# - The audit compares only the first call of a function. Before later calls, Dynamo may have learnt which sizes change.
# - The case has no artifact.
# - The forward of the module is a wrapper that torch made. One function of torch calls all modules with such a forward.
NOT_COMPARED = (
    "two_shapes",
    "partial_of_another_value",
    "inputs_that_share_memory",
    "inputs_that_overlap",
    "mode_of_a_decorator",
    "mode_of_a_decorator_again",
    "inference_mode_of_a_decorator",
)


@pytest.mark.parametrize("name", [item for item in TABLE if item.values[0] not in (*NEVER, *NOT_COMPARED)])
def test_audit_confirms_the_package_of_each_case(later: dict[str, Any], audited: dict[str, Any], name: str) -> None:
    found = audited[name]
    assert "error" not in found, found["error"]
    assert found["equal"], found
    if "traced" in later[name]["states"]:
        assert found["states"] == later[name]["states"], "the case has no package to compare"
    else:
        assert "audited" in found["states"] and set(found["states"]) <= {"audited", "used", "skipped"}, found
