"""What artifacts for CUDA compute: their Triton kernels by Triton's interpreter, against eager: `make interpreter`."""
