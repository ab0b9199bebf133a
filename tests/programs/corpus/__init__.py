"""What programs do, a row each (run by ../corpus_program.py)."""
