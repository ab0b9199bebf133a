"""`make gpu-check`: proves in nine minutes on a GPU that graphs are served there, and measures starts and steps."""
