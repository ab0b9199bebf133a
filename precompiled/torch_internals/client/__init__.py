"""Holds code for clients only: routes ``torch.compile`` to this project, prepares graphs, loads artifacts, retraces."""
