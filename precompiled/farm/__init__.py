"""Sends jobs to a Ray cluster, the *farm*, while local workers are busy (docs/guides/farm.md).

::

    courier ── helper (farm.Farm) ── driver.py (Ray) ── a node: node.py ── worker
    offers      tracks the jobs     one for a         in a process       service/worker.py,
    a job       at the farm         helper            of Ray's           as everywhere

Entry points: ``farm`` (for the helper of a store) and ``messages`` (the protocol). Only ``driver`` imports Ray. The
driver is a separate process, because Ray ends its processes if the cluster disappears.
"""
