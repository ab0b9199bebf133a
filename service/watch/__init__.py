"""The watcher: a child of the daemon that watches source files and recaptures graphs (docs/guides/watch.md).

::

    daemon ──stream (wire.Ask, JobEnded / Answer, Cancel, Watched)── watcher ── guard ── capture (the user's
    interpreter)
                                                                        ▲                    │
                                                                        └── datagrams ───────┘  graphs, sources, ends

Modules: ``watcher`` is the loop; ``watch`` is one watch; ``plan`` decides when to capture (pure); ``files`` digests the
sources; ``hints`` reports possible changes; ``capture`` runs one capture; ``guard`` is the capture's parent process;
``registry`` stores watches on disk.
"""
