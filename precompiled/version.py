"""The version of this distribution, importable without importing anything else."""

VERSION = "0.1.0"
