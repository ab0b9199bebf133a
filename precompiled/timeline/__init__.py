"""Where the time went: from what clients and workers have kept in the store, to a trace and a page for people.

``facts`` reads the store; ``start`` says where each second of a process's start went; ``events`` makes a trace of it
that Perfetto and Chrome show, ``otlp`` one for OpenTelemetry, ``page`` a page; ``picture`` draws bars, those of
benchmarks/starts too.
"""
