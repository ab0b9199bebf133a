"""Compiles, by the daemon, every operator for which torch has samples (OpInfo, in torch's wheel): `make operators`."""
