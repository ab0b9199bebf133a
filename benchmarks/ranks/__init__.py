"""Distributed programs (`make ranks`): what each rank computes, what is served, and how often it is compiled."""

from benchmarks.ranks import collectives, data_parallel, llama, pipelines, sharded, tensor_parallel  # noqa: F401 - fill CASES
from benchmarks.ranks.registry import CASES, Case

__all__ = ["CASES", "Case"]
