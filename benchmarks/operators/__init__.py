"""Compiles every operator that torch has samples for (OpInfo, in torch's wheel) by the daemon: `make operators`."""
