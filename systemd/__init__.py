"""Contains the systemd unit files as package data."""
