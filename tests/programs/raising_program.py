"""A program with graphs whose eager run raises and whose compiled code does not.

Usage: raising_program.py wait|go [CASE ...]. With "wait" a case waits for its artifacts between two calls. Prints JSON:
what each call returns and changes.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import precompiled

precompiled.enable()
torch._inductor.config.fallback_random = True
CASES: dict[str, Callable[[], Any]] = {}
WAITS = len(sys.argv) > 1 and sys.argv[1] == "wait"


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES[function.__name__] = function
    return function


def between() -> None:
    if WAITS:
        assert precompiled.wait(300)


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), value.detach().to(torch.float64).flatten().tolist()]
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def raised(function: Callable[[], Any]) -> list[str]:
    try:
        function()
    except Exception as error:
        context = error.__context__
        return [type(error).__name__, str(error).strip().splitlines()[0][:60], type(context).__name__]
    return ["nothing", "", ""]


def no_eager(x: torch.Tensor) -> torch.Tensor:
    """Returns twice the integer part of ``x``, through an operator that has no eager kernel."""
    small = x.abs().to(torch.uint32)
    return (small + small).to(x.dtype)


@case
def an_input_is_changed_before() -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        y = no_eager(x)
        x.add_(1)
        return x + y

    compiled, x = torch.compile(function), torch.ones(3)
    for _ in range(3):
        compiled(x)
        between()
    return x, compiled(x)


@case
def a_view_and_its_base_are_changed_before() -> Any:
    def function(base: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        part.add_(1)
        base.mul_(3)
        return no_eager(base) + part.sum()

    compiled, base = torch.compile(function), torch.arange(4.0)
    for _ in range(2):
        found = compiled(base, base[1:3])
        between()
    return found, base


@case
def what_was_saved_before_can_be_differentiated() -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = no_eager(x)
        return y * 2

    compiled, x = torch.compile(function), torch.ones(3, requires_grad=True)
    loss = (x * x).sum()
    found = compiled(x)
    loss.backward()
    return found, x.grad


@case
def statistics_are_updated_once() -> Any:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4))

    def function(x: torch.Tensor) -> torch.Tensor:
        return no_eager(net(x)) + net(x)

    compiled = torch.compile(function)
    for _ in range(2):
        found = compiled(torch.arange(12.0).reshape(3, 4))
        found.sum().backward()
        between()
    return found, net[0].running_mean, net[0].running_var, net[0].num_batches_tracked, net[1].weight.grad


@case
def parameters_are_stepped_once() -> Any:
    p, state = torch.nn.Parameter(torch.ones(3)), torch.zeros(3)

    def step(gradient: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            torch._foreach_add_([state], [gradient])
            p.sub_(state)
            return no_eager(p)

    compiled = torch.compile(step)
    for _ in range(2):
        compiled(torch.ones(3))
        between()
    return p, state


@case
def random_numbers_are_drawn_once() -> Any:
    compiled = torch.compile(lambda x: no_eager(F.dropout(x, 0.5)) + torch.rand(3))
    torch.manual_seed(3)
    found = [compiled(torch.ones(3)), torch.rand(2)]
    between()
    return [*found, compiled(torch.ones(3)), torch.rand(2)]


@case
def an_output_is_written_once() -> Any:
    def function(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        torch.add(x, out, out=out)
        return no_eager(x)

    compiled, out = torch.compile(function), torch.ones(3)
    for _ in range(2):
        compiled(torch.ones(3), out)
        between()
    return out


@case
def a_cache_of_inference_is_written_once() -> Any:
    with torch.inference_mode():
        cache = torch.zeros(2, 3)

        def function(x: torch.Tensor, at: int) -> torch.Tensor:
            cache[at] += x
            return no_eager(x) + cache.sum()

        compiled = torch.compile(function)
        found = [compiled(torch.ones(3), 1)]
        between()
        return [*found, compiled(torch.ones(3), 1), cache]


@case
def an_input_that_has_a_history_is_changed_before() -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return no_eager(x) + x

    compiled, a = torch.compile(function), torch.ones(3, requires_grad=True)
    for _ in range(2):
        x = a * 1
        (compiled(x).sum() + x.sum()).backward()
        between()
    return a.grad, x


@case
def a_checkpoint_computes_it_again() -> Any:
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 4)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = net(x).sin().exp()
        return no_eager(y) + y.tanh()

    compiled = torch.compile(function)
    gradients = []
    for reentrant in (False, True):
        for _ in range(2):
            x = torch.ones(2, 4, requires_grad=True)
            checkpoint(compiled, x, use_reentrant=reentrant).sum().backward()
            gradients += [x.grad, net.weight.grad]
            between()
    return gradients


@case
def data_that_eager_refuses_come_late() -> Any:
    compiled = torch.compile(lambda x, target: F.binary_cross_entropy(torch.sigmoid(x), target))
    results = []
    for top in (1.0, 1.1, 1.0, 1.1):
        x = torch.linspace(-1, 1, 4, requires_grad=True)
        loss = compiled(x, torch.linspace(0, top, 4))
        loss.backward()
        results += [loss, x.grad]
    return results


@case
def an_index_out_of_bounds_raises_once() -> Any:
    counted = torch.zeros(1)

    def function(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        counted.add_(1)
        return x[at] * 5

    compiled = torch.compile(function)
    has_raised = []
    for at in (0, 9, 1, 9):
        has_raised.append(raised(lambda at=at: compiled(torch.ones(3), torch.tensor([at])))[0] != "nothing")
    return has_raised


@case
def an_assertion_of_the_program_is_its_own() -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), "must be positive")
        return x * 2

    compiled = torch.compile(function)
    errors = []
    for sign in (1, -1, 1, -1):
        errors.append(raised(lambda sign=sign: compiled(sign * torch.ones(3))))
        between()
    return errors


CALLS: list[int] = []


@torch.library.custom_op("raising_program::positive", mutates_args={"log"})
def positive(x: torch.Tensor, log: torch.Tensor) -> torch.Tensor:
    CALLS.append(1)
    log.add_(1)
    if x.min() < 0:
        raise ValueError("not positive")
    return x.clone()


@positive.register_fake
def _(x: torch.Tensor, log: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@case
def a_custom_op_that_raises_is_called_once() -> Any:
    compiled, log = torch.compile(lambda x, log: positive(x, log) * 2), torch.zeros(1)
    CALLS.clear()
    errors = [raised(lambda: compiled(torch.ones(2), log)), raised(lambda: compiled(-torch.ones(2), log))]
    between()
    return errors, len(CALLS), log


@case
def a_custom_op_changes_an_input_before() -> Any:
    compiled, log = torch.compile(lambda x, log: no_eager(positive(x, log)) * 2), torch.zeros(1)
    found = []
    for _ in range(2):
        found.append(compiled(torch.ones(2), log))
        between()
    return found, log


@case
def the_second_graph_of_a_function_raises() -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        torch._dynamo.graph_break()
        x.mul_(2)
        return no_eager(x) + x

    compiled, x = torch.compile(function), torch.ones(3)
    for _ in range(2):
        found = compiled(x)
        between()
    return found, x


@case
def sizes_vary() -> Any:
    compiled = torch.compile(lambda x: no_eager(x.mul_(2)) + x, dynamic=True)
    found = []
    for size in (3, 4, 5):
        found.append(compiled(torch.ones(size)))
        between()
    return found


@case
def a_large_input_is_changed_behind_what_raises() -> Any:
    def function(x: torch.Tensor, small: torch.Tensor) -> torch.Tensor:
        y = no_eager(small)
        x.add_(y[0])
        return y

    compiled, x = torch.compile(function), torch.zeros(10_000_000)
    for _ in range(2):
        compiled(x, torch.ones(2))
        between()
    return x[:2], x[-2:]


@case
def several_kinds() -> Any:
    eights = torch.compile(lambda a: (a.to(torch.float8_e4m3fn) + a.to(torch.float8_e4m3fn)).to(torch.float32))
    image = torch.compile(lambda x: torch.maximum(x, torch.full_like(x, 7)) + 1)
    shifted = torch.compile(lambda x: ((x >> 1) ^ x) & 7)
    kept = torch.compile(lambda k, at: k.gather(0, at).to(torch.float32) * k.to(torch.float32).abs().amax())
    eighths = torch.linspace(-2, 2, 12).reshape(3, 4).to(torch.float8_e4m3fn)
    return [
        eights(torch.linspace(0, 2, 6)),
        image(torch.arange(6).to(torch.uint16)).to(torch.int32),
        shifted(torch.arange(6).to(torch.uint64)).to(torch.int64),
        kept(eighths, torch.zeros(2, 4, dtype=torch.int64)),
    ]


@case
def nan_is_looked_for() -> Any:
    def function(a: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        norm = torch.where(mask, a, 0.0).pow(2).sum(-1).sqrt()
        return (norm * mask[:, 0]).sum()

    compiled = torch.compile(function)
    gradients = []
    for _ in range(2):
        a = torch.linspace(-1, 1, 12).reshape(4, 3).requires_grad_()
        with torch.autograd.detect_anomaly(check_nan=True):
            compiled(a, torch.tensor([[True], [True], [False], [True]]).expand(4, 3)).backward()
        gradients.append(a.grad)
        between()
    return gradients


def main() -> None:
    results: dict[str, Any] = {}
    for name in sys.argv[2:] or CASES:
        torch._dynamo.reset()
        results[name] = plain(CASES[name]())
    print(json.dumps({"results": results, "reasons": [graph.reason for graph in precompiled.report()]}))


main()
