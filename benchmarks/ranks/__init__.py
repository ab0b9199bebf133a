"""Runs distributed programs (`make ranks`): the results of each rank, the graphs served, and the number of compiles."""

from benchmarks.ranks import collectives, data_parallel, llama, pipelines, sharded, tensor_parallel  # noqa: F401 - fill CASES
from benchmarks.ranks.registry import CASES, Case

__all__ = ["CASES", "Case"]
