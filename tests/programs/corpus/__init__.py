"""The rows of the corpus: one feature of user programs each (run by ../corpus_program.py)."""
