"""A made-up CUDA device: run torch's CUDA builds on a host without a GPU, for tests and for compiles.

torch is unchanged. A library of this project is loaded before torch's libraries, and answers their calls of CUDA's
runtime. The project's library has a table of properties for each kind of device (``kinds.py``), and uses the host's
memory as device memory:

- The CPU computes torch's own operators, so their results are correct (``operators.cpp``, ``references.cpp``).
- Kernels from Triton are loaded as on a device, with a check of their architecture. A launch is written to a log and
  **not run**, so the output memory keeps its old content. The values that compiled code returns mean nothing.
- Anything else that a GPU would have to compute is an error (``cudaErrorNotSupported``), never "success".

``CUDA_MADE_UP=h100,h100`` names the devices. If this variable is unset, a process is unaffected. ``activate`` loads the
library into a process; ``build`` compiles it for the installed torch. Only public names of CUDA are used, no private
names of torch. Checked with torch 2.11.0 and 2.15.0.
"""
