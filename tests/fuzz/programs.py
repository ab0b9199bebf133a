"""Defines small random training programs that do many different things around compiled functions.

A seed determines a ``Plan``. A ``Run`` builds the plan's models and executes the plan, in the same way under plain
``torch.compile``, with swaps, and eager. The run's result is a ``Story``.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

WIDTH, ROWS = 8, 4

OPERATIONS = (
    "linear",
    "relu",
    "gelu",
    "tanh",
    "exp",
    "norm",
    "batch-norm",
    "dropout",
    "residual",
    "add_",
    "relu_",
    "view",
    "chunk",
    "buffer",
    "scale",
    "mask",
    "unused-parameter",
    "detached-branch",
    "no-grad-branch",
    "transpose",
)
HOMOGENEOUS = ("linear", "relu", "dropout", "view", "chunk", "mask", "transpose", "scale")
OUTPUTS = (
    "one",
    "one",
    "one",
    "head",
    "views",
    "base-and-view",
    "chunks",
    "input",
    "input-view",
    "detached",
    "twice",
    "changes-input",
)
AROUND = (
    "nothing",
    "nothing",
    "checkpoint",
    "checkpoint",
    "reentrant",
    "nested",
    "hooks",
    "nested-reentrant",
    "function",
)
AFTER = ("nothing", "nothing", "nothing", "mul_", "add_", "hook", "hook-calls", "slice-assign")
# Only programs whose seed is at least WIDER also draw from KEPT and SIZES. The programs of lower seeds must not change,
# because tests use seeds that have found an error.
WIDER = 1_000_000
# A program whose seed is at least LAYERED is one function with many mostly equal blocks. precompiled cuts this
# function's graph into pieces.
LAYERED = 2_000_000
KEPT = ("leaky_relu", "clamp", "amax", "max-of-two", "prod", "lookup")
SIZES = ("steady", "steady", "varying", "two-towers")
BACKWARDS = ("backward", "backward", "backward", "retained", "grad", "twice", "double", "in-parts", "raises", "dropped")


@dataclass(frozen=True)
class Plan:
    """A random program.

    ``homogeneous``: the loss is homogeneous in the weights, so that wrong random numbers show in the gradients.
    """

    seed: int
    blocks: list[tuple[list[str], str]]
    shared: bool  # blocks of one kind share one graph
    whole: bool  # all blocks are compiled as one function, instead of one by one
    around: str  # the context of each call of a block
    around_all: str
    after: str
    backward: list[str]  # for each step, what the backward does
    micro_batches: int
    set_to_none: bool
    autocast: bool
    dropout: float
    between: str  # what the program calls between two steps
    homogeneous: bool
    sizes: str = "steady"  # how the sizes of the batches change
    fails_at: int | None = None  # the micro-batch whose lookup fails in the middle of the graph


def draw(seed: int) -> Plan:
    pick = random.Random(seed)
    homogeneous = pick.random() < 0.3
    count = pick.choice((1, 1, 2, 3))
    shared = pick.random() < 0.5

    def block() -> tuple[list[str], str]:
        names = HOMOGENEOUS if homogeneous else OPERATIONS
        inside = [pick.choice(names) for _ in range(pick.randint(1, 5))]
        if homogeneous:
            inside = ["linear", "dropout", *inside]
        return inside, "one" if homogeneous else pick.choice(OUTPUTS)

    first = block()
    around = pick.choice(AROUND)
    plan = Plan(
        seed=seed,
        blocks=[first if shared else block() for _ in range(count)],
        shared=shared,
        whole=pick.random() < 0.2,
        around=around,
        around_all="nothing" if around != "nothing" else pick.choice(("nothing", "nothing", "checkpoint", "reentrant")),
        after="nothing" if homogeneous else pick.choice(AFTER),
        backward=["backward" if homogeneous else pick.choice(BACKWARDS) for _ in range(3)],
        micro_batches=pick.choice((1, 1, 2, 3)),
        set_to_none=pick.random() < 0.7,
        autocast=not homogeneous and pick.random() < 0.15,
        dropout=0.5 if homogeneous else pick.choice((0.0, 0.0, 0.3)),
        between=pick.choice(("nothing", "nothing", "no-grad", "inference", "eval")),
        homogeneous=homogeneous,
    )
    if plan.whole:
        plan = replace(plan, around_all="nothing")
    if seed < WIDER:
        return plan
    return _wider(plan) if seed < LAYERED else _layered(_wider(plan))


def _wider(plan: Plan) -> Plan:
    pick = random.Random(-plan.seed)
    if plan.homogeneous:
        return replace(plan, sizes=pick.choice(SIZES))

    def block(inside: list[str], output: str) -> tuple[list[str], str]:
        inside = list(inside)
        for _ in range(pick.randint(0, 2)):
            inside.insert(pick.choice((0, len(inside), pick.randint(0, len(inside)))), pick.choice(KEPT))
        return inside, output

    blocks = [block(*plan.blocks[0])] * len(plan.blocks) if plan.shared else [block(*each) for each in plan.blocks]
    inside = {name for names, _ in blocks for name in names}
    outputs = {output for _, output in blocks}
    # If a graph fails, its earlier changes of tensors may differ from those of compiled code
    # (docs/explanation/stand-in.md).
    may_fail = "lookup" in inside and not inside & {"buffer", "batch-norm"} and "changes-input" not in outputs
    return replace(
        plan,
        blocks=blocks,
        sizes=pick.choice(SIZES) if plan.after != "hook-calls" else "steady",
        after=pick.choice((plan.after, plan.after, "input")),
        fails_at=pick.randint(0, 4) if may_fail and pick.random() < 0.5 else None,
    )


def _layered(plan: Plan) -> Plan:
    pick = random.Random(f"layers of {plan.seed}")
    inside, output = plan.blocks[0]
    names = HOMOGENEOUS if plan.homogeneous else (*OPERATIONS, *KEPT)
    inside = [*inside, *(pick.choice(names) for _ in range(pick.randint(7, 10)))]
    pick.shuffle(inside)
    count = pick.randint(5, 7)
    blocks = [(inside, output)] * count
    if pick.random() < 0.3:  # two kinds of blocks in turns, or one other block in the middle
        other = ([*inside, "relu" if plan.homogeneous else "tanh"], "one")
        blocks = [*blocks[3:], other, *blocks[:3]] if pick.random() < 0.5 else [(inside, output), other] * 4
    around_all = pick.choice(("nothing", "nothing", "checkpoint", "reentrant"))
    # Plain torch.compile refuses most of these deep programs if they change an input, so few of them change one.
    changes_input = plan.after == "input" and pick.random() < 0.1
    return replace(
        plan,
        blocks=blocks,
        shared=True,
        whole=True,
        around="nothing",
        around_all=around_all,
        after="nothing" if plan.after == "input" and not changes_input else plan.after,
        sizes="steady",  # a graph with symbolic sizes is not cut
        fails_at=None,
    )


def _full(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor that autocast may have rounded, in the type of the parameters."""
    return value.to(torch.get_default_dtype())


class Block(torch.nn.Module):
    def __init__(self, operations: list[str], output: str, dropout: float, bias: bool) -> None:
        super().__init__()
        self.operations, self.output, self.dropout = operations, output, dropout
        made: dict[str, Callable[[], torch.nn.Module]] = {
            "linear": lambda: torch.nn.Linear(WIDTH, WIDTH, bias=bias),
            "norm": lambda: torch.nn.LayerNorm(WIDTH),
            "batch-norm": lambda: torch.nn.BatchNorm1d(WIDTH),
        }
        self.layers = torch.nn.ModuleDict({str(at): made[name]() for at, name in enumerate(operations) if name in made})
        self.scale = torch.nn.Parameter(torch.full((WIDTH,), 1.1))
        self.unused = torch.nn.Parameter(torch.ones(WIDTH))
        self.head = torch.nn.Linear(WIDTH, 3)
        self.register_buffer("seen", torch.zeros(WIDTH))
        self.register_buffer("mask", torch.arange(WIDTH) % 3 == 0)
        if "lookup" in operations:
            self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    def forward(self, x: torch.Tensor) -> Any:
        if self.output == "changes-input":
            x.mul_(0.9)
        h = x
        for at, name in enumerate(self.operations):
            h = self.layers[str(at)](h) if str(at) in self.layers else self._one(name, h, x)
        return self._output(h, x)

    def _one(self, name: str, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        functional = torch.nn.functional
        if name in ("relu", "gelu"):
            return getattr(functional, name)(h)
        if name in ("tanh", "exp"):
            return getattr(torch, name)(h.clamp(-3, 3))
        if name == "dropout":
            return functional.dropout(h, self.dropout, self.training)
        if name == "residual":
            return h + x
        if name == "add_":
            return (h * 1).add_(0.5)
        if name == "relu_":
            return (h + 0.1).relu_()
        if name == "view":
            return h.reshape(-1).view(h.shape) * 1
        if name == "chunk":
            left, right = h.chunk(2, -1)
            return torch.cat((right, left), -1)
        if name == "buffer":
            self.seen.add_(_full(h.detach()).mean(0))
            return h
        if name == "scale":
            return h * self.scale
        if name in ("leaky_relu", "clamp", "amax", "max-of-two", "prod", "lookup"):
            return self._kept(name, h)
        if name == "mask":
            return h.masked_fill(self.mask, 0.0)
        if name == "transpose":
            return (h.t().contiguous() * 1).t()
        if name == "unused-parameter":
            return h + (self.unused.detach() * 2)
        if name == "detached-branch":
            return h + (h * self.unused).detach()
        assert name == "no-grad-branch", name
        with torch.no_grad():
            branch = h * self.unused
        return h + branch

    def _kept(self, name: str, h: torch.Tensor) -> torch.Tensor:
        if name == "leaky_relu":
            return torch.nn.functional.leaky_relu(h)
        if name == "clamp":
            return h.clamp(-0.5, 0.5)
        if name == "amax":
            return h - h.amax(-1, keepdim=True)
        if name == "max-of-two":
            return torch.maximum(h, h.new_full((), 0.1))
        if name == "prod":
            return h + h.clamp(-1, 1).prod(-1, keepdim=True)
        assert name == "lookup", name
        with torch.no_grad():
            row = torch.nn.functional.embedding(self.at, self.head.weight)
        return h + row

    def _output(self, h: torch.Tensor, x: torch.Tensor) -> Any:
        forms: dict[str, Callable[[], Any]] = {
            "one": lambda: h,
            "changes-input": lambda: h * 1,
            "head": lambda: (h, self.head(_full(h))),
            "views": lambda: ((base := h * 2).view(-1).view(base.shape), base[0]),
            "base-and-view": lambda: ((base := h * 2), base.t()),
            "chunks": lambda: tuple((h * 2).chunk(2, 0)),
            "input": lambda: (h * 1, x),
            "input-view": lambda: (h * 1, x[1:]),
            "detached": lambda: ((out := h * 1), out.detach()),
            "twice": lambda: ((out := h * 1), out),
        }
        return forms[self.output]()


class Recomputed(torch.autograd.Function):
    """A reentrant checkpoint as a user may implement it, without torch.utils.checkpoint."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Any], x: torch.Tensor) -> Any:
        ctx.run, ctx.state = run, torch.get_rng_state()
        ctx.save_for_backward(x)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        after = torch.get_rng_state()
        torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            outputs = ctx.run(x)
        torch.set_rng_state(after)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        pairs = [
            (output, gradient)
            for output, gradient in zip(outputs, gradients, strict=True)
            if gradient is not None and output.requires_grad
        ]
        torch.autograd.backward(*(list(part) for part in zip(*pairs, strict=True)))
        return None, x.grad


@dataclass
class Story:
    """The facts that a run notes, in order. The facts of two runs are compared one by one. A noted tensor is copied at
    once.
    """

    facts: list[tuple[str, Any]] = field(default_factory=list)

    def note(self, name: str, value: Any) -> None:
        self.facts.append((name, value.detach().clone() if isinstance(value, torch.Tensor) else value))


class UsersError(Exception):
    """An error that a program raises on purpose."""


class Run:
    """Executes a plan.

    ``compile`` gets a function and returns the function to call in its place. The run calls ``tick`` at each point
    where a swap may come.
    """

    def __init__(self, plan: Plan, compile: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self.plan = plan
        self.tick: Callable[[], None] = lambda: None
        torch.manual_seed(plan.seed)
        self.blocks = torch.nn.ModuleList(Block(*block, plan.dropout, not plan.homogeneous) for block in plan.blocks)
        self.start = {name: value.clone() for name, value in self.blocks.state_dict().items()}
        self._compiled = [compile(block) for block in self.blocks] if not plan.whole else list(self.blocks)
        self._forward = compile(self._through) if plan.whole else self._through

    def story(self) -> Story:
        """Execute the plan from its start, and return the facts."""
        # Checkpoints must not stop a recomputation early if graphs change buffers. At an early stop, eager code may
        # have made only some of a graph's changes, but compiled code all of them (docs/explanation/stand-in.md).
        changes = any(name in ("buffer", "batch-norm") for inside, _ in self.plan.blocks for name in inside)
        with set_checkpoint_early_stop(not changes):
            return self._story()

    def _story(self) -> Story:
        plan, story = self.plan, Story()
        with torch.no_grad():
            for name, value in self.blocks.state_dict().items():
                value.copy_(self.start[name])
        self.blocks.train()
        parameters = list(self.blocks.parameters())
        for parameter in parameters:
            parameter.grad = None
        self._number = 0
        optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.1)
        torch.manual_seed(plan.seed + 1)
        for number, kind in enumerate(plan.backward):
            for _ in range(plan.micro_batches):
                self._set_lookups(99 if self._number == plan.fails_at else 0)
                self._micro_batch(kind, story)
                self._set_lookups(0)
                self._number += 1
                if plan.seed >= WIDER:
                    story.note("grad mode", torch.is_grad_enabled())
                self.tick()
            if plan.homogeneous:
                self._note_homogeneity(story, parameters)
            else:
                for name, parameter in self.blocks.named_parameters():
                    story.note(f"gradient of {name}", "None" if parameter.grad is None else parameter.grad)
            optimizer.step()
            optimizer.zero_grad(set_to_none=plan.set_to_none or plan.homogeneous)
            self.tick()
            if number == 0:
                self._between(story)
        if not plan.homogeneous:
            for name, value in self.blocks.state_dict().items():
                story.note(f"{name} at the end", value)
        return story

    def _note_homogeneity(self, story: Story, parameters: list[torch.nn.Parameter]) -> None:
        """Notes whether the backward used the dropout masks of the forward.

        By Euler's theorem, the gradient of a homogeneous loss times the weights equals the loss times its degree. If
        the backward's masks differed from the forward's, this equation would be wrong.
        """
        degree = sum(name in ("linear", "scale") for inside, _ in self.plan.blocks for name in inside)
        products = [p.grad * p.detach() for p in parameters if p.grad is not None]
        found = sum(float(product.sum()) for product in products)
        scale = sum(float(product.abs().sum()) for product in products)
        diverged = not math.isfinite(found) and not math.isfinite(self._losses)
        equal = diverged or abs(found - degree * self._losses) <= 1e-3 * scale
        story.note("the gradient's masks are the loss's", equal)
        self._losses = 0.0

    _losses = 0.0
    _number = 0  # the index of the current micro-batch

    def _set_lookups(self, at: int) -> None:
        for block in self.blocks:
            if hasattr(block, "at"):
                block.at.fill_(at)

    def _rows(self) -> int:
        """Returns the number of rows of the current batch.

        With sizes "varying", the number changes, so that Dynamo traces a further graph of each block.
        """
        return ROWS + (2 * (self._number % 3) if self.plan.sizes == "varying" else 0)

    def _through(self, x: torch.Tensor) -> Any:
        extra = []
        for block, call in zip(self.blocks, self._compiled, strict=True):
            x = x * 1  # a copy, because some blocks change their input
            outputs = self._around(self.plan.around, call, x)
            x, more = self._joined(block, outputs)
            extra += more
        return (x, *extra)

    @staticmethod
    def _joined(block: Any, outputs: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
        if not isinstance(outputs, tuple):
            return outputs, []
        if block.output == "chunks":
            return torch.cat(outputs, 0), []
        return outputs[0], list(outputs[1:])

    def _around(self, kind: str, call: Callable[..., Any], x: torch.Tensor) -> Any:
        def again(x: torch.Tensor) -> Any:
            self.tick()
            return call(x)

        if self.plan.whole:
            return call(x)
        if kind == "checkpoint":
            return checkpoint(again, x, use_reentrant=False)
        if kind == "reentrant":
            return checkpoint(again, x, use_reentrant=True)
        if kind == "nested":
            return checkpoint(lambda x: checkpoint(again, x * 1, use_reentrant=False), x, use_reentrant=False)
        if kind == "nested-reentrant":
            return checkpoint(lambda x: checkpoint(again, x * 1, use_reentrant=True), x, use_reentrant=False)
        if kind == "function":
            return Recomputed.apply(again, x)
        if kind == "hooks":
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
                return again(x)
        return again(x)

    def _micro_batch(self, kind: str, story: Story) -> None:
        plan = self.plan
        x = torch.randn(self._rows(), WIDTH).requires_grad_()
        try:
            with torch.autocast("cpu", torch.bfloat16, enabled=plan.autocast):
                given = x * 1 if plan.after == "input" else x
                if plan.around_all == "nothing":
                    outputs = self._forward(given)
                else:
                    reentrant = plan.around_all == "reentrant"
                    outputs = checkpoint(self._forward, given, use_reentrant=reentrant)
                if plan.sizes == "two-towers":
                    other = torch.randn(ROWS if self._number < 2 else ROWS + 3, WIDTH).requires_grad_()
                    outputs = (outputs[0] * self._forward(other)[0].mean(), *outputs[1:])
            if plan.after == "input":
                given.mul_(0.5)
            self.tick()
            self._note_outputs(story, x, outputs)
            h = self._changed(outputs[0], story)
            loss = _full(h).sum() if plan.homogeneous else _full(h).square().mean()
            if not plan.homogeneous:
                story.note("loss", loss)
            self._losses += float(loss) if plan.homogeneous else 0.0
            self._backward(kind, loss, h, x, outputs, story)
        except UsersError:
            story.note("raised", "UsersError")
        except Exception as error:
            story.note("raised", type(error).__name__)

    def _note_outputs(self, story: Story, x: torch.Tensor, outputs: tuple[torch.Tensor, ...]) -> None:
        if self.plan.homogeneous:
            return
        for at, output in enumerate(outputs):
            layout = (output.dtype, tuple(output.shape), output.stride())
            story.note(f"output {at} is like", (*layout, output.requires_grad, output.is_leaf, output.is_inference()))
            story.note(f"output {at}", output)
            story.note(
                f"who shares memory with {at}",
                [
                    other
                    for other, tensor in enumerate((x, *outputs))
                    if tensor.untyped_storage().data_ptr() == output.untyped_storage().data_ptr()
                ],
            )

    def _changed(self, h: torch.Tensor, story: Story) -> torch.Tensor:
        after = self.plan.after
        if after in ("mul_", "add_"):
            getattr(h, after)(0.5)
        elif after == "slice-assign":
            h[0] = 0.0
        elif after == "hook" and h.requires_grad:
            h.register_hook(lambda gradient: (self.tick(), gradient * 2)[1])
        elif after == "hook-calls" and h.requires_grad:

            def calls(gradient: torch.Tensor) -> None:
                self.tick()
                with torch.no_grad():
                    story.note("in a hook", self._forward(torch.ones(ROWS, WIDTH))[0])

            h.register_hook(calls)
        return h * 1

    def _backward(
        self, kind: str, loss: torch.Tensor, h: torch.Tensor, x: torch.Tensor, outputs: Any, story: Story
    ) -> None:
        parameters = [parameter for parameter in self.blocks.parameters() if parameter.requires_grad]
        if kind == "dropped":
            return
        if kind == "retained":
            loss.backward(retain_graph=True)
            self.tick()
            _full(h).sum().backward()
        elif kind == "grad":
            found = torch.autograd.grad(loss, [x, *parameters], allow_unused=True)
            story.note("which have a gradient", [gradient is not None for gradient in found])
        elif kind == "twice":
            loss.backward()
            self.tick()
            loss.backward()
        elif kind == "double":
            (gradient,) = torch.autograd.grad(loss, [x], create_graph=True)
            self.tick()
            gradient.square().sum().backward()
        elif kind == "in-parts":
            total = loss + sum(_full(output).sum() for output in outputs[1:] if output.requires_grad)
            torch.autograd.grad(total, [x], retain_graph=True)
            self.tick()
            total.backward()
        elif kind == "raises":

            def fails(_: torch.Tensor) -> None:
                self.tick()
                raise UsersError

            x.register_hook(fails)
            loss.backward()
        else:
            loss.backward()
        if not self.plan.homogeneous:
            story.note("gradient of the input", "None" if x.grad is None else x.grad)

    def _between(self, story: Story) -> None:
        x = torch.ones(ROWS, WIDTH)
        with self._mode():
            if self.plan.between != "nothing":
                try:
                    output = self._forward(x)[0]
                    if not self.plan.homogeneous:
                        story.note("between", output)
                except Exception as error:
                    story.note("between raised", type(error).__name__)
        self.blocks.train()

    @contextlib.contextmanager
    def _mode(self) -> Iterator[None]:
        between = self.plan.between
        if between == "eval":
            self.blocks.eval()
        with torch.inference_mode() if between == "inference" else torch.set_grad_enabled(between != "no-grad"):
            yield
