"""Every operator that torch has samples for (OpInfo, in torch's wheel), through the daemon: `make operators`."""
