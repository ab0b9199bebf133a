"""The unit files, as package data: ``precompiled doctor`` and the install target find them here."""
