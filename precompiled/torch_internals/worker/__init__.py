"""Code for workers only: compiling a graph with AOTAutograd and Inductor, and building its kernels."""
