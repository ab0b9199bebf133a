"""Keeps a list of recipes for each program: how to compile the Triton kernels that the program has used.

::

    recipes/<program>/<digest>.json        one file per kernel, under the trust rules of artifacts

A file has a ``ListedRecipe`` as JSON. The file's name is the digest of the recipe
(torch_internals/user_code/kernel_recipes.py) and of ``texts``, so that all processes of a program write the same recipe
to the same file. Recipes stay on their host, because a worker runs the source that a recipe contains.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precompiled.core import durable
from precompiled.core.json_text import parse_json
from precompiled.store import lines, trust
from precompiled.store.artifact_format import digest

RECIPES = "recipes"
SUFFIX = ".json"
MAX_BYTES = 1 << 20
MAX_RECIPES = 500  # of one program; further ones are not listed
KEPT = 64  # programs; older ones are removed


@dataclass(frozen=True)
class ListedRecipe:
    """A recipe, and facts about the last kernel that was compiled with this recipe.

    - ``key``: the kernel's key in the store
    - ``device``: the device of a worker (wire.Submit); ``gpu``: the device's model
    - ``compile_s``: the seconds that the compile took in the program; 0 if unknown
    """

    recipe: dict[str, Any]
    name: str
    key: str
    triton: str
    texts: bool
    device: str
    gpu: str
    compile_s: float = 0.0

    @property
    def file(self) -> str:
        return digest(json.dumps([self.recipe, self.texts], sort_keys=True).encode()) + SUFFIX


class RecipeList:
    """The recipes of one program in the store at ``root``."""

    def __init__(self, root: Path, program: str) -> None:
        self._root, self._program = root, program
        self._folder = root / RECIPES / program

    def read(self) -> list[ListedRecipe]:
        """The listed recipes, the oldest first. Removes damaged files, and files of other versions of precompiled.

        Raises StoreError, OSError.
        """
        found: list[tuple[int, ListedRecipe]] = []
        with (
            suppress(FileNotFoundError),
            trust.open_directory(self._root) as root_fd,
            trust.open_directory(RECIPES, root_fd, shown=str(self._folder.parent)) as recipes_fd,
            trust.open_directory(self._program, recipes_fd, shown=str(self._folder)) as fd,
        ):
            for name in sorted(os.listdir(fd))[:MAX_RECIPES]:
                if name.endswith(SUFFIX):
                    with suppress(FileNotFoundError):  # another process has removed it
                        data = trust.read_file(name, fd, MAX_BYTES, shown=str(self._folder / name))
                        written = os.stat(name, dir_fd=fd).st_mtime_ns
                        try:
                            found.append((written, ListedRecipe(**parse_json(data))))
                        except (ValueError, TypeError):
                            os.unlink(name, dir_fd=fd)
        return [item for _written, item in sorted(found, key=lambda pair: pair[0])]

    def add(self, item: ListedRecipe) -> None:
        """Add a recipe to the list, or replace the listed recipe with the same file name. Raises OSError."""
        is_new = not self._folder.exists()
        folder = lines.folder(self._root, RECIPES, self._program)
        if is_new:
            lines.drop_oldest(folder.parent, KEPT, folder)
        data = json.dumps(dataclasses.asdict(item)).encode()
        if len(data) <= MAX_BYTES and ((folder / item.file).exists() or len(os.listdir(folder)) < MAX_RECIPES):
            with durable.replacing(folder / item.file, 0o600, sync=False) as file:
                file.write(data)

    def remove(self, item: ListedRecipe) -> None:
        with suppress(FileNotFoundError):
            (self._folder / item.file).unlink()


def clear(root: Path) -> None:
    """Remove the recipes of all programs."""
    shutil.rmtree(root / RECIPES, ignore_errors=True)
