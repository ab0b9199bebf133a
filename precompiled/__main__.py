"""`python -m precompiled`: runs the `precompiled` command with this interpreter."""

from precompiled.cli import main

if __name__ == "__main__":
    main()
