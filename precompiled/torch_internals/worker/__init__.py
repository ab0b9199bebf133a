"""What only a worker does: compile a graph with AOTAutograd and Inductor, and build its kernels."""
