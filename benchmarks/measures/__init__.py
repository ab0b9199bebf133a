"""The measures of `make bench`, one file each, with the programs that they run; (a), (b), (h) are in ``starts``."""
