"""Shows how a program's start spent its time, from the store's records of clients and workers.

- ``facts``: reads the store.
- ``start``: assigns each second of a process's start to an activity.
- ``events``: makes a trace for Perfetto and Chrome.
- ``page``: makes an HTML page.
- ``picture``: draws bars, also for benchmarks/starts.
"""
