"""Serves a user's process: looks its graphs up, submits them, awaits their artifacts and swaps these in."""
