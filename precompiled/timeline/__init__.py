"""Shows where the time of a program's start went, from the records of clients and workers in the store.

- ``facts``: reads the store.
- ``start``: assigns each second of a process's start to an activity.
- ``events``: makes a trace for Perfetto and Chrome.
- ``page``: makes an HTML page.
- ``picture``: draws bars, also for benchmarks/starts.
"""
