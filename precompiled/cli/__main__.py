"""`python -m precompiled.cli`: the same as `python -m precompiled` (the user unit starts it so)."""

from precompiled.cli import main

if __name__ == "__main__":
    main()
