"""`python -m precompiled`: the `precompiled` command, with exactly this interpreter."""

from precompiled.cli import main

if __name__ == "__main__":
    main()
