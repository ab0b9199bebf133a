"""`make gpu-check`: shows on a GPU, in nine minutes, that graphs are served, and measures starts and steps."""
