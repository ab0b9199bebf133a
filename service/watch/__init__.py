"""The watcher: a process of the daemon's that watches source files and captures graphs again (docs/guides/watch.md).

::

    daemon ──stream (wire.Ask, JobEnded / Answer, Cancel, Watched)── watcher ── guard ── capture (the user's
    interpreter)
                                                                        ▲                    │
                                                                        └── datagrams ───────┘  graphs, sources, ends

``watcher`` is the loop; ``plan`` decides when to capture (pure); ``files`` is the truth about sources, ``hints`` says
when to look; ``capture`` is one capture's processes; ``registry`` what survives a restart.
"""
