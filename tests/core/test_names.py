"""Tests that Dynamo's source names are translated to the program's own names."""

from __future__ import annotations

import pytest

from precompiled.core.names import in_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("L['self']._modules['fc']._parameters['weight']", "self.fc.weight"),
        ("G['scale']", "scale"),
        ("L['args'][0]", "args[0]"),
        ("L['self']._buffers['mean'].size()[0]", "self.mean.size()[0]"),
        ("tensor 'L['x']' size mismatch at index 0", "tensor 'x' size mismatch at index 0"),
        ("options['L'] and GL['x']", "options['L'] and GL['x']"),
        ("", ""),
    ],
)
def test_dynamo_names_are_translated_to_names_of_the_program(text: str, words: str) -> None:
    assert in_words(text) == words
