"""Code for clients only: routing ``torch.compile`` to this project, preparing graphs, loading artifacts, retracing."""
