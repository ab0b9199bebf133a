"""Holds settings, errors and helpers for files, which all other folders use.

This folder imports only the standard library.
"""
