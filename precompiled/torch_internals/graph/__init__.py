"""A Dynamo graph, its inputs and the state around it, as plain data and back: what a key is made of.

The client encodes, the worker decodes, so each file has both directions.
"""
