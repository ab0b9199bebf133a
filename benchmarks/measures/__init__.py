"""The measures of `make bench`, one file each, with their programs. (a), (b) and (h) are in ``starts``."""
