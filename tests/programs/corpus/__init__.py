"""The rows of the corpus, which ../corpus_program.py runs. Each row tests one feature of user programs."""
