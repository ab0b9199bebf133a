"""Runs torch's own tests of ``torch.compile`` with precompiled and with plain ``torch.compile``."""
