"""Makes CUDA graphs work if a background thread builds forward and backward before their first call.

Torch relies on two facts: plain torch.compile builds the backward at the backward's first call, and in the calling
thread.

- If only the forward uses CUDA graphs, each run of the backward notifies the CUDA graph manager
  (torch/_inductor/output_code.py, maybe_handle_backward_generation). Torch looks up the manager when it builds the
  backward, and asserts that the manager exists. But only the forward's first call creates the manager. So this file
  looks up the manager when the backward is called.
- The managers are thread-local. The thread that imports torch._inductor.cudagraph_trees gets a container for managers,
  and autograd's threads take over the container of the thread that calls them. In torch 2.11, a call in any other
  thread raises an AssertionError. So the thread that traces a graph, and will call it, imports the module.

Private names: torch._inductor.output_code.{maybe_handle_backward_generation, CompiledFxGraph.current_callable,
CompiledFxGraph.fx_kwargs}, torch._inductor.cudagraph_trees.get_manager, torch._inductor.config.triton.cudagraph_trees.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from precompiled.torch_internals.patches import Patches

_lock = threading.Lock()
_patches, _inside = Patches(), 0


def called_here() -> None:
    """Prepare this thread to call compiled code that uses CUDA graphs.

    Call this before another thread loads the code.
    """
    import torch._inductor.cudagraph_trees  # noqa: F401


@contextmanager
def made_ahead() -> Iterator[None]:
    """Patch torch for a compile or load that builds forward and backward before their first call.

    Any number of threads may share the patch at once. For other compiles, the patch behaves like torch's own function.
    """
    from torch._inductor import output_code

    global _inside  # noqa: PLW0603
    with _lock:
        if _inside == 0:
            _patches.replace(output_code, "maybe_handle_backward_generation", lambda _: _tell_at_the_call)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _patches.undo()


def _tell_at_the_call(graph: Any, forward_device: Any) -> None:
    from torch._inductor import config

    if not (graph.fx_kwargs["is_backward"] and config.triton.cudagraph_trees):
        return
    call, index = graph.current_callable, forward_device.value if forward_device is not None else None
    if index is None:  # the forward does not use CUDA graphs either
        return

    def backward(inputs: object) -> object:
        from torch._inductor.cudagraph_trees import get_manager

        manager = get_manager(index, create_if_none_exists=False)
        if manager is not None:
            manager.set_to_running_backward()
        return call(inputs)

    graph.current_callable = backward
