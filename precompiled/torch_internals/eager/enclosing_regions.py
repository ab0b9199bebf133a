"""Detects regions of a program that may run a graph's call twice and treat both runs as one.

A region is detected by the mechanism of torch that it uses:

- A non-reentrant checkpoint is detected by its hooks on saved tensors. The hooks recompute the tensors.
- A custom autograd Function is detected by the code of its ``forward``, and a backward by autograd's task. A reentrant
  checkpoint (torch's, DeepSpeed's, a user's own) is such a Function. It runs the graph without gradients in its
  forward, and with gradients in its backward. Dynamo makes two graphs of the two runs, each with its own artifact.

A checkpoint has two kinds of saved-tensor hooks: _checkpoint_hook in its first run, and _recomputation_hook in the
recomputation. This file reads a closure variable of the hooks' pack functions: ``frame`` of _checkpoint_hook, and
``target_frame_ref`` of _recomputation_hook. This file also reads weak_holders and x_metadatas of a checkpoint's frame.

Private names: torch.autograd.function.AUTOGRAD_FUNCTION_COUNTER, torch._C._autograd._top_saved_tensors_default_hooks,
torch._C._current_graph_task_id, torch.utils.checkpoint.{_checkpoint_hook, _recomputation_hook},
torch._ops.OpOverload._schema, torch._subclasses.fake_tensor.FakeTensorMode,
torch.utils._python_dispatch.TorchDispatchMode. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.function import AUTOGRAD_FUNCTION_COUNTER
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from precompiled.core import interruptions


def _pack_hook() -> Any:
    """The pack function of the current saved-tensor hooks if a checkpoint has set them, else None."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    pack = hooks[0] if hooks is not None else None
    return pack if getattr(pack, "__module__", None) == checkpoint.__name__ else None


def in_a_checkpoint() -> bool:
    """Whether a non-reentrant checkpoint is running its function, for the first or second time."""
    return _pack_hook() is not None


def checkpoint_around() -> tuple[object | None, bool]:
    """Return the surrounding checkpoint's frame, and whether this is the checkpoint's second run.

    Python frees the frame when no second run can follow. Outside a checkpoint, the frame is None.
    """
    pack = _pack_hook()
    if pack is None:
        return None, False
    pack = inspect.unwrap(pack)  # the second hook is wrapped to keep Dynamo out
    cells = dict(zip(pack.__code__.co_freevars, pack.__closure__ or (), strict=True))
    if "frame" in cells:
        return cells["frame"].cell_contents, False
    reference = cells.get("target_frame_ref")
    return (reference.cell_contents() if reference is not None else None), True


def saved_in_a_checkpoint() -> tuple[object, int] | None:
    """Return the object in which a checkpoint's first run records saved tensors, and the number of records so far.

    Returns None outside a first run.
    """
    frame: Any
    frame, again = checkpoint_around()
    return None if frame is None or again else (frame, len(frame.weak_holders))


def forget_saved(noted: tuple[Any, int] | None) -> None:
    """Remove the records that the checkpoint has added since ``saved_in_a_checkpoint``, because the checkpoint's second
    run will not save these tensors.
    """
    if noted is not None:
        frame, count = noted
        del frame.weak_holders[count:], frame.x_metadatas[count:]


def in_a_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)


def in_a_function() -> bool:
    """Whether this thread is in the forward of a custom autograd Function."""
    if torch.is_grad_enabled():  # a Function's forward runs without gradients, unless its own code enables them
        return False
    global _known  # noqa: PLW0603
    made = repr(AUTOGRAD_FUNCTION_COUNTER)  # the counter of all Function classes
    if made != _known[0]:
        _known = made, {id(code): code for code in _forwards(Function)}
    forwards = _known[1]
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if id(frame.f_code) in forwards:
            return True
        frame = frame.f_back
    return False


# Frames are recognized by the code of ``forward``, because in torch 2.15 its caller is C code, which has no frame. Code
# objects are compared by id, because == compares all of their contents.
_known: tuple[str, dict[int, CodeType]] = ("", {})


def _forwards(kind: type[Any]) -> Iterator[CodeType]:
    """Yield, for each Function that derives from ``kind``, the code of its ``forward`` without decorators."""
    for derived in kind.__subclasses__():
        forward = vars(derived).get("forward")
        code = getattr(inspect.unwrap(getattr(forward, "__func__", forward)), "__code__", None)
        if code is not None:
            yield code
        yield from _forwards(derived)


class _SeesRandom(TorchDispatchMode):
    """Records whether an operator drew random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()) and not _without_dropout(func, args, kwargs):
            self.found = True
        return func(*args, **(kwargs or {}))


def _without_dropout(func: Any, args: Sequence[object], kwargs: Mapping[str, object] | None) -> bool:
    """Whether an operator is an attention without dropout, and so draws no random numbers."""
    for at, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            value = (kwargs or {}).get("dropout_p", args[at] if at < len(args) else argument.default_value)
            return bool(value == 0)
    return False


def draws(run: Callable[..., object], args: Sequence[object]) -> bool:
    """Whether ``run(*args)`` draws random numbers. Determined on fake tensors. True if this cannot be determined."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad(), torch.random.fork_rng(devices=()):
            fakes = [
                mode.from_tensor(value.detach(), static_shapes=True) if isinstance(value, torch.Tensor) else value
                for value in args
            ]
            with _SeesRandom() as seen:
                run(*fakes)
        return seen.found
    except Exception as error:  # noqa: BLE001 - an operator without a fake kernel, or data that only a run has
        interruptions.pass_on(error)
        return True
