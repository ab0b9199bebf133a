"""Holds code for workers only: compiles a graph with AOTAutograd and Inductor, and builds its kernels."""
