"""Tests of packages of a compiled ``optimizer.step()``, whose state Dynamo creates during the trace."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from support_host import TIMEOUT_S, Host
from support_slow import everyday_or_slow

from precompiled.packages.dynamo import optimizers

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]  # each process compiles all training loops

PROGRAM = Path(__file__).parent.parent / "programs" / "optimizers_program.py"

# The second process runs these loops unchanged, or with other values that have no guard. The second process traces
# nothing.
USED = (
    "adam",
    "adamw_with_a_tensor_rate",
    "capturable",
    "sgd_with_momentum",
    "rmsprop",
    "from_a_checkpoint",
    "model_and_optimizer",
)
# The second process runs these loops with a change. The second process traces the step, and its results equal eager's.
TRACED = (
    "another_rate",
    "another_weight_decay",
    "another_kind_of_state",
    "groups_the_other_way_round",
    "gradients_with_other_strides",
    "a_parameter_without_a_gradient",
    "one_gradient_of_two_parameters",
    "a_hook",
    "a_step_of_its_own",
)
NEVER = ("state_of_its_own",)
# The audit compares only the first call of a function.
NOT_COMPARED = ("a_step_of_its_own", "model_and_optimizer")
EVERYDAY = ("adamw_with_a_tensor_rate", "sgd_with_momentum", "gradients_with_other_strides")


def run(host: Host, loops: list[str], *, after: bool, audit: bool = False, python: str | None = None) -> dict[str, Any]:
    environment = {
        "PRECOMPILED_PACKAGES": "function",
        "PRECOMPILED_MODE": "wait",
        "OMP_NUM_THREADS": "1",
        "PRECOMPILED_PACKAGE_AUDIT": str(int(audit)),
    }
    found: dict[str, Any] = host.start({"after": after, "loops": loops}, environment, python, PROGRAM).result(
        timeout_s=3 * TIMEOUT_S
    )
    return found


def states(found: dict[str, Any]) -> set[str]:
    return {state for _name, state, *_reasons in found["frames"]}


@pytest.fixture(scope="module")
def recorded(shared_host: Host, request: pytest.FixtureRequest) -> tuple[Host, dict[str, Any]]:
    items = [item for item in request.session.items if item.path == request.path and isinstance(item, pytest.Function)]
    wanted = {item.callspec.params["name"] for item in items if hasattr(item, "callspec")}
    return shared_host, run(shared_host, [name for name in (*USED, *TRACED, *NEVER) if name in wanted], after=False)


@pytest.fixture(scope="module")
def audited(recorded: tuple[Host, dict[str, Any]]) -> dict[str, Any]:
    """Returns the report of an audit of the unchanged loops. The audit runs before ``later`` records the changed
    loops.
    """
    host, first = recorded
    return run(host, [name for name in first if name not in NEVER], after=False, audit=True)


@pytest.fixture(scope="module")
def later(recorded: tuple[Host, dict[str, Any]], audited: dict[str, Any]) -> dict[str, Any]:
    host, first = recorded
    return run(host, list(first), after=True)


@pytest.mark.parametrize("name", everyday_or_slow(USED, EVERYDAY))
def test_later_process_does_not_trace_the_optimizer_step(
    recorded: tuple[Host, dict[str, Any]], later: dict[str, Any], name: str
) -> None:
    first, second = recorded[1][name], later[name]
    assert first["equal"] and second["equal"]
    assert "traced" not in states(first), first
    assert states(second) <= {"used", "skipped"}, second
    assert (first["kept_alive"], second["kept_alive"]) == (0, 0), "an optimizer that is gone has left its state"


@pytest.mark.parametrize("name", everyday_or_slow(TRACED, EVERYDAY))
def test_changed_optimizer_is_traced_again(
    recorded: tuple[Host, dict[str, Any]], later: dict[str, Any], name: str
) -> None:
    first, second = recorded[1][name], later[name]
    assert first["equal"] and second["equal"]
    assert "traced" not in states(first), first
    assert "recorded" in states(second), second


@pytest.mark.slow
@pytest.mark.parametrize("name", NEVER)
def test_step_with_an_untraced_init_group_is_never_recorded(
    recorded: tuple[Host, dict[str, Any]], later: dict[str, Any], name: str
) -> None:
    for found in (recorded[1][name], later[name]):
        assert found["equal"]
        (step,) = [frame for frame in found["frames"] if frame[0] == "step"]
        assert step[1:3] == ["traced", "package-not-portable"] and "_init_group is not torch's" in step[3]


COMPARED = [name for name in (*USED, *TRACED) if name not in NOT_COMPARED]


@pytest.mark.parametrize("name", everyday_or_slow(COMPARED, EVERYDAY))
def test_audit_of_an_optimizer_step_confirms_its_package(audited: dict[str, Any], name: str) -> None:
    assert audited[name]["equal"]
    assert "audited" in states(audited[name]) and states(audited[name]) <= {"audited", "used", "skipped"}, audited[name]


def test_prepared_optimizer_state_is_undone() -> None:
    """To check an entry, packages create the optimizer's state. If the entry does not match, packages must remove this
    state again.

    Otherwise Dynamo would trace a state that the program does not have.
    """
    first, second = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    for parameter in (first, second):
        parameter.grad = torch.ones(2)
    optimizer = torch.optim.SGD([first, second], lr=0.1, momentum=0.9)
    optimizer.state[second] = {"momentum_buffer": torch.zeros(2), "step": torch.zeros(())}
    torch._dynamo.mark_static_address(second, guard=False)
    before = dict(optimizer.state[second])
    calls = ([("group", 0), ("list", None), ("list", None), ("list", None)], {})
    with contextlib.ExitStack() as undo:
        optimizers.prepare([("self", (calls,))], {"self": optimizer}.__getitem__, undo)
        assert first in optimizer.state
        assert first._dynamo_static_input_type == second._dynamo_static_input_type == "guarded"
        assert before["step"]._dynamo_static_input_type == "guarded"
    assert list(optimizer.state) == [second] and optimizer.state[second] == before
    assert not hasattr(first, "_dynamo_static_input_type") and second._dynamo_static_input_type == "unguarded"
    assert not hasattr(before["step"], "_dynamo_static_input_type")
