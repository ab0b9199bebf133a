"""How costs grow with artifacts, clients and jobs (`make bench-scale`)."""
