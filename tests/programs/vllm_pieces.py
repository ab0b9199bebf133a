"""Makes vLLM split its graph into pieces on the CPU. vLLM itself disables this mode on the CPU."""

from __future__ import annotations

from typing import Any

from vllm.compilation.passes.pass_manager import PostGradPassManager
from vllm.compilation.passes.vllm_inductor_pass import VllmInductorPass
from vllm.config import CompilationMode
from vllm.platforms.cpu import CpuPlatform


class Nothing(VllmInductorPass):
    def __call__(self, graph: Any) -> None:
        pass


class Passes(PostGradPassManager):
    """vLLM's passes, except the one that uses operators that vLLM's CPU build lacks."""

    def configure(self, config: Any) -> None:
        super().configure(config)
        self.fix_functionalization = Nothing(config)


def nothing(graph: Any) -> None:
    """An Inductor pass of the program. The pass changes nothing."""


def cut_into_pieces() -> None:
    check = CpuPlatform.check_and_update_config

    def checked(config: Any) -> None:
        mode = config.compilation_config.mode
        config.compilation_config.mode = CompilationMode.NONE
        check(config)
        config.compilation_config.mode = mode

    CpuPlatform.check_and_update_config = staticmethod(checked)
    CpuPlatform.get_pass_manager_cls = staticmethod(lambda: f"{__name__}.{Passes.__name__}")
