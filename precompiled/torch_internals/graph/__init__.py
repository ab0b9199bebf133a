"""Encodes a Dynamo graph, its inputs and the modes around it as plain data, from which the key is computed.

The client encodes and the worker decodes, so each file contains both directions.
"""
