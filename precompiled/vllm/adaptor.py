"""Replaces the compiler interface of vLLM's piecewise backend by a class that derives from that interface.

vLLM looks up the class of its interface in ``vllm.compilation.backends.make_compiler``. Only that name is replaced.
Before the first call of a piece, vLLM calls ``standalone_compile``, for one size or for all sizes of a range.

Names of vLLM: vllm.compilation.backends.{InductorStandaloneAdaptor, PostGradPassManager},
vllm.compilation.compiler_interface.{InductorStandaloneAdaptor.{compile, compute_hash}, set_inductor_config,
set_functorch_config}, vllm.compilation.passes.inductor_pass.InductorPass, vllm.envs.VLLM_USE_MEGA_AOT_ARTIFACT. Checked
on 0.32.0.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from vllm import envs
from vllm.compilation import backends, compiler_interface
from vllm.compilation.compiler_interface import InductorStandaloneAdaptor
from vllm.compilation.passes.inductor_pass import InductorPass

from precompiled import backend, hook
from precompiled.core.errors import Bypass, PrecompiledError
from precompiled.torch_internals.client import standalone_compile
from precompiled.torch_internals.client.standalone_compile import SavedCallable
from precompiled.vllm import passes

_PARAMETERS = ["self", "graph", "example_inputs", "compiler_config", "compile_range", "key"]


def install() -> None:
    """Make vLLM use the interface below. Idempotent. Raises PrecompiledError if vLLM's own interface differs."""
    found = list(inspect.signature(InductorStandaloneAdaptor.compile).parameters)
    if found != _PARAMETERS:
        raise PrecompiledError(f"its compiler interface takes {found}", code="vllm-context")
    if backends.InductorStandaloneAdaptor is InductorStandaloneAdaptor:
        backends.InductorStandaloneAdaptor = Adaptor


class Adaptor(InductorStandaloneAdaptor):
    """Implements vLLM's interface to Inductor with artifacts from the daemon, where possible.

    The class keeps vLLM's name for the interface, so vLLM and precompiled can load each other's entries of vLLM's
    cache.
    """

    _config: Any = None

    def compute_hash(self, vllm_config: object) -> str:
        """Return vLLM's hash. vLLM calls this before the first compile, with its passes' configuration."""
        self._config = vllm_config
        found: str = super().compute_hash(vllm_config)
        return found

    def compile(
        self,
        graph: Any,
        example_inputs: Sequence[object],
        compiler_config: Mapping[str, object],
        compile_range: object,
        key: str | None = None,
    ) -> tuple[object, object]:
        """Return the compiled piece, and where vLLM can load it later (None if precompiled's store has it)."""

        def in_process() -> Any:
            return super(Adaptor, self).compile(graph, example_inputs, compiler_config, compile_range, key)

        def prepared() -> tuple[object, Mapping[str, object]]:
            options = self._options(compiler_config, compile_range)
            return standalone_compile.of_inputs(graph, example_inputs), options

        if hook.state() != "on":
            found: tuple[Any, Any] = in_process()
            return found
        in_one_file = bool(envs.VLLM_USE_MEGA_AOT_ARTIFACT)
        compiled: tuple[object, object] = backend.compile_ahead(
            graph,
            prepared,
            in_process,
            lambda found: (standalone_compile.artifact(found) if isinstance(found, SavedCallable) else found, None),
            written_down=in_one_file,
        )
        return compiled

    def _options(self, compiler_config: Mapping[str, object] | None, compile_range: Any) -> dict[str, object]:
        """Inductor's settings for this compile, with vLLM's passes in a form that a worker can rebuild.

        Raises Bypass.
        """
        config = self._config
        if config is None:
            raise Bypass("vLLM compiles before it has set its configuration", code="vllm-context")
        if config.compilation_config.use_inductor_graph_partition:
            raise Bypass("Inductor cuts the graph (use_inductor_graph_partition)", code="vllm-context")
        options = dict(compiler_config or {})
        compiler_interface.set_inductor_config(options, compile_range)
        compiler_interface.set_functorch_config()
        for name, value in options.items():
            if isinstance(value, (InductorPass, backends.PostGradPassManager)):
                options[name] = passes.wrap_pass(value, config, (compile_range.start, compile_range.end))
        return {**options, **standalone_compile.SETTINGS}
