"""The program that a frame was looked up in, and whether an entry was made in it (decision 0024)."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any

from precompiled.packages import executed
from precompiled.packages.executed import Place
from precompiled.packages.program_text import Text


class Program:
    """The program of this process, when a frame was looked up: its texts, and what else it has loaded.

    ``sources``: a digest of the whole texts; ``code()``: of what matters of them. An entry's header has both.
    """

    def __init__(
        self, sources: str, texts: Sequence[tuple[str, Text]] = (), others: Any = None,
        unrun: Callable[[], dict[str, dict[Place, CodeType]]] = dict,
    ) -> None:  # fmt: skip
        self.sources = sources
        self._texts, self._others = texts, others
        self._look = unrun
        self._unrun: dict[str, dict[Place, CodeType]] | None = None  # by module

    def fix(self) -> None:
        """Note which functions have run by now; before a trace, which runs some."""
        if self._unrun is None:
            self._unrun = self._look()

    def parse(self) -> None:
        """Parse the texts, for a ``code()`` in another thread. The first time it takes some 20 ms for 1,000 lines."""
        for _name, text in self._texts:
            text.parse()

    def code(self) -> str:
        """Parses the texts if they are not yet parsed."""
        self.fix()
        unrun = self._unrun or {}
        shown = [(name, text.code(unrun.get(name, {}).keys())) for name, text in self._texts]
        return digest_of([shown, self._others]) if shown else ""

    def later(self) -> dict[str, CodeType]:
        """Functions that have not run, neither when this was fixed nor since; by module and qualified name."""
        found = [
            (f"{module}.{qualname}", code)
            for module, codes in (self._unrun or {}).items()
            for (qualname, _line), code in codes.items()
            if not executed.has_run(code)
        ]
        names = Counter(name for name, _code in found)
        return {name: code for name, code in found if names[name] == 1}

    def before(self, later: Mapping[str, str]) -> dict[int, str]:
        """Code that has not run counts as it did in an entry (``Body.later``): by id, its digest then."""
        return {id(code): later[name] for name, code in self.later().items() if name in later}

    def made(self, sources: str, code: str) -> bool:
        """Whether an entry with these digests was made in this program. ``sources``: "" for any."""
        return sources in ("", self.sources) or (code != "" and code == self.code())


ANY = Program("")
UNKNOWN = Program("unknown")


def digest_of(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()
