"""Checks the values of artifacts for CUDA: Triton's interpreter runs their kernels (`make interpreter`)."""
