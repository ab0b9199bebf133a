"""A CUDA device that is made up: torch's CUDA builds run on a host without a GPU, for tests and for compiles.

torch is not changed. Its libraries ask CUDA's runtime for devices; one of ours is in the process before them, with
tables of what a device of a kind says of itself (``kinds.py``), and the host's memory as its memory:

- torch's own operators are computed on the CPU, so they give what they should (``operators.cpp``, ``references.cpp``);
- kernels that Triton made are loaded as on a device (their architecture is looked at), and a launch is written to a
  log and **not run**: what it would have written is whatever was in that memory. Nothing that compiled code gives on
  such a device is a result;
- all else that a GPU would have to compute is an error (``cudaErrorNotSupported``), never "success".

``CUDA_MADE_UP=h100,h100`` names the devices; without it a process has none of this. ``activate`` brings it into a
process, ``build`` compiles it for the installed torch. Everything is asked for by CUDA's public names: no private
name of torch's is used. Checked with torch 2.11.0 and 2.15.0.
"""
