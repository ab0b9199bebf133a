"""Holds code around Inductor that both client and worker use."""
