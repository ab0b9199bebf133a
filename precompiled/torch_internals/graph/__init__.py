"""Encodes a Dynamo graph, its inputs and the modes around it as plain data, the input of the key, and decodes them.

The client encodes and the worker decodes, so each file contains both directions.
"""
