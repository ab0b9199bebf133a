"""Holds applications of web frameworks and task queues. services.py and tools.py run them."""
