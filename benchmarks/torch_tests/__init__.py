"""torch's own tests of ``torch.compile``, with precompiled switched on, beside plain ``torch.compile``."""
