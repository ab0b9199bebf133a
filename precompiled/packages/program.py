"""Decides whether an entry was recorded in the present program (program_text.py)."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import CodeType

from precompiled.packages import executed
from precompiled.packages.executed import Place
from precompiled.packages.program_text import Text


class Program:
    """The program as this process has loaded it when a frame is looked up: source texts, and modules without a text.

    ``sources`` is a digest of the complete texts. ``code()`` returns a digest of the parts of the texts that can matter
    to a trace (program_text.py). An entry's header contains both digests.
    """

    def __init__(
        self,
        sources: str,
        texts: Sequence[tuple[str, Text]] = (),
        others: object = None,
        unrun: Callable[[], dict[str, dict[Place, CodeType]]] = dict,
    ) -> None:
        self.sources = sources
        self._texts, self._others = texts, others
        self._look = unrun
        self._unrun: dict[str, dict[Place, CodeType]] | None = None  # maps a module to its functions that have not run

    def fix(self) -> None:
        """Record which functions have not run. Call this method before a trace, because a trace runs some functions."""
        if self._unrun is None:
            self._unrun = self._look()

    def parse(self) -> None:
        """Parse the texts once, so that another thread can call ``code()``. Takes about 20 ms for 1,000 lines."""
        for _name, text in self._texts:
            text.parse()

    def code(self) -> str:
        """The digest of the parts of the texts that can matter to a trace."""
        self.fix()
        unrun = self._unrun or {}
        shown = [(name, text.code(unrun.get(name, {}).keys())) for name, text in self._texts]
        return digest_of([shown, self._others]) if shown else ""

    def later(self) -> dict[str, CodeType]:
        """Functions that have run neither before nor since ``fix``, by module and qualified name."""
        found = [
            (f"{module}.{qualname}", code)
            for module, codes in (self._unrun or {}).items()
            for (qualname, _line), code in codes.items()
            if not executed.has_run(code)
        ]
        names = Counter(name for name, _code in found)
        return {name: code for name, code in found if names[name] == 1}

    def before(self, later: Mapping[str, str]) -> dict[int, str]:
        """For each function that has not run, map the id of its code to the digest in an entry (``Body.later``).

        Descriptions use the entry's digests for these functions, so edits of their bodies do not matter.
        """
        return {id(code): later[name] for name, code in self.later().items() if name in later}

    def made(self, sources: str, code: str) -> bool:
        """Whether an entry with these two digests was recorded in this program. If ``sources`` is "", any program
        fits.
        """
        return sources in ("", self.sources) or (code != "" and code == self.code())


ANY = Program("")
UNKNOWN = Program("unknown")


def digest_of(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()
