"""`python -m precompiled`: the same as the `precompiled` command, of exactly this interpreter."""

from precompiled.cli import main

if __name__ == "__main__":
    main()
