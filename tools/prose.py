"""Check the words of the tree: `PYTHON tools/prose.py`, where PYTHON has precompiled installed.

- A line of Markdown has at most 200 characters.
- Markdown, docstrings, comments and messages use none of BANNED.
- No file says to install the distribution `precompiled`, which is an unrelated project on PyPI.
- The help of each group of commands shows the whole summary of each command.

``--count`` prints the number of findings of each folder and phrase, instead of each finding. ``--sample docs`` and
``--sample comments`` print 100 random sentences (always the same for the same tree) for a reader. At most 5 may need a
second reading.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 200  # characters of a line of Markdown
# Folders whose Python text follows these rules. Add a folder after its text was rewritten.
PYTHON = ("precompiled", "service", "systemd", "benchmarks", "tools", "tests")
# Maps a pattern to the words to write instead.
BANNED = {
    r"\bof which\b": "a second sentence",
    r"\bbut for\b": "except",
    r"\bwhat for\b": "why",
    r"\b(nobody|somebody|whoever)\b": "the process, user or host that is meant",
    r"(?<!there )\b(is|are|was|were) no (?!longer|more|such|less|later|earlier)": "is not a",
    r"\b(is another|are others)\b": "differs",
    r"\btold\b": "the verb that is meant: sent, reported, passed, printed",
    r"\bat it\b": "the noun",
    r"# fmt: (skip|off)": "it as ruff format does",
}
# An install command with the bare name `precompiled`, up to the end of the code or a comment.
UNRELATED = re.compile(r"\b(?:pip3?|pipx|uv tool|uv) (?:install|add)\b[^#`\n]*?[ '\"]precompiled(?=[\[\s'\"=<>~`]|$)")
ANY = re.compile("|".join(BANNED), re.IGNORECASE)


class Finding(NamedTuple):
    path: str
    line: int
    problem: str


def tracked(*patterns: str) -> list[Path]:
    """Files that git tracks, and new files that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.splitlines() if (ROOT / name).is_file()]


def in_markdown(path: Path) -> Iterator[Finding]:
    name, in_code = str(path.relative_to(ROOT)), False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if len(line) > LONGEST:
            yield Finding(name, number, f"{len(line)} characters; at most {LONGEST}")
        if line.lstrip().startswith("```"):
            in_code = not in_code
        if not in_code and not line.startswith("    "):
            yield from _banned(name, number, re.sub(r"`[^`]*`|\]\([^)]*\)", "", line))


def in_python(path: Path) -> Iterator[Finding]:
    """Findings in comments and strings."""
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    source = path.read_text()
    if not ANY.search(re.sub(r"``[^`\n]*``", "", source)):
        return  # a search takes much less time than the tokens of a file
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in kinds:
            for offset, line in enumerate(token.string.splitlines()):
                text = re.sub(r"``[^`]*``", "", line)
                yield from _banned(str(path.relative_to(ROOT)), token.start[0] + offset, text)


def _banned(name: str, number: int, text: str) -> Iterator[Finding]:
    if not ANY.search(text):
        return
    for pattern, instead in BANNED.items():
        for found in re.finditer(pattern, text, re.IGNORECASE):
            yield Finding(name, number, f"{found[0]!r}: write {instead}")


def installs_unrelated(name: str, text: str) -> Iterator[Finding]:
    """Commands that would install the unrelated project."""
    for number, line in enumerate(text.splitlines(), 1):
        if UNRELATED.search(line):
            yield Finding(name, number, "`precompiled` on PyPI is an unrelated project: write torch-precompiled")


def in_help() -> Iterator[Finding]:
    """Summaries that are longer than a line of 80 columns in their group's help."""
    from precompiled.cli import tree
    from precompiled.cli.app import Group, cli

    for path in ("", *tree.GROUPS):
        group = Group(path) if path else cli
        name = f"precompiled {path}".strip()
        with click.Context(group, info_name=name, terminal_width=80, max_content_width=80) as context:
            rows = group.get_help(context).splitlines()
            for child in tree.children(path):
                row = next(row for row in rows if row.startswith(f"  {child} "))
                if len(row) > 80 or not row.endswith(group.summary(context, child)):
                    yield Finding(f"{name} --help", 0, f"the summary of {child} does not fit its line")


def doc_sentences() -> Iterator[tuple[str, str]]:
    """Sentences and table cells of Markdown, each with its file. Skips code and generated parts."""
    for path in tracked("*.md"):
        text = re.sub(
            r"^(?:```.*?^```|<!-- made by.*?<!-- end -->)", "", path.read_text(), flags=re.DOTALL | re.MULTILINE
        )
        for block in re.split(r"\n\s*\n|\n(?=[-*|#] ?)", text):
            if block.startswith("|"):
                parts = [cell.strip() for line in block.splitlines() for cell in line.strip("|").split("|")]
            else:
                parts = _split(block)
            yield from ((str(path.relative_to(ROOT)), part) for part in parts)


def comment_sentences() -> Iterator[tuple[str, str]]:
    """Sentences of docstrings and comments of the product and its tests, each with its file.

    Skips literal blocks (diagrams, formats), which one line cannot show, and the rulers between sections.
    """
    for path in tracked("precompiled/*.py", "service/*.py", "systemd/*.py", "tests/*.py", "benchmarks/*.py"):
        name, text = str(path.relative_to(ROOT)), path.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                docstring = re.sub(r"(?<=::)\n\n(?:(?: +.*)?(?:\n|$))+", "\n\n", ast.get_docstring(node) or "")
                for block in re.split(r"\n\n|\n(?=\s*- )", docstring):
                    yield from ((name, part) for part in _split(block.partition("Private names:")[0]))
        comments: list[str] = []
        for line in [*text.splitlines(), ""]:
            found = re.match(r"\s*# (?!type:|noqa|fmt:|pragma|-{4})(.+)", line)
            if found:
                comments.append(found[1])
            elif comments:
                yield from ((name, part) for part in _split(" ".join(comments)))
                comments = []


def _split(text: str) -> list[str]:
    return re.split(r"(?<=[.!?:]) +(?=[`\"(]*[A-Z])", " ".join(text.split()))


def sample(kind: str, number: int, seed: int) -> list[str]:
    """``number`` sentences of at least six words, each with its file."""
    found = doc_sentences() if kind == "docs" else comment_sentences()
    long = [
        f"{name}: {text}" for name, text in found if len(re.findall(r"[A-Za-z]{2,}", re.sub(r"`[^`]*`", "", text))) >= 6
    ]
    return random.Random(seed).sample(long, number)


def findings() -> Iterator[Finding]:
    for path in tracked("*.md"):
        yield from in_markdown(path)
    for path in tracked(*(f"{folder}/*.py" for folder in PYTHON)):
        if path != Path(__file__):  # this file contains the banned phrases as patterns
            yield from in_python(path)
    for path in tracked(
        "*.md",
        "*.py",
        "*.yml",
        "*.yaml",
        "*.toml",
        "*.sh",
        "*.tsv",
        "*.service",
        "*.1",
        "*Dockerfile",
        "Makefile",
        ".ci/*",
    ):
        if path.name != "test_install_names.py":  # has such commands, to test this rule
            yield from installs_unrelated(str(path.relative_to(ROOT)), path.read_text())
    yield from in_help()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", action="store_true", help="count by folder and phrase")
    parser.add_argument("--sample", choices=["docs", "comments"], help="print random sentences")
    parser.add_argument("--number", type=int, default=100, help="of these (100)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.sample:
        print("\n".join(sample(arguments.sample, arguments.number, arguments.seed)))
        return 0
    found = list(findings())
    if arguments.count:
        for (folder, problem), number in Counter((str(Path(at.path).parent), at.problem) for at in found).most_common():
            print(f"{number:6} {folder}: {problem}")
    else:
        for at in found:
            print(f"{at.path}:{at.line}: {at.problem}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
