"""The systemd unit files, as package data for ``precompiled doctor`` and the installer."""
