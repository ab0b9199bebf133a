"""Files of applications, as users of frameworks and task queues have them. services.py and tools.py run them."""
