"""The farm (docs/guides/farm.md, docs/decisions/0051): a Ray cluster that compiles the jobs that find no worker here.

::

    courier ── helper (farm.Farm) ── driver.py (Ray) ── a node: node.py ── worker
    offers      what is out, what      one for a         in a process       service/worker.py,
    a job       came back              helper            of Ray's           as everywhere

Doors: ``farm`` (for the helper of a store), ``messages`` (what is sent). Ray is imported in ``driver`` alone, which is
a process of its own: where a cluster goes away Ray ends the process that had joined it.
"""
