"""Checks the values that artifacts for CUDA compute: Triton's interpreter runs their kernels (`make interpreter`)."""
