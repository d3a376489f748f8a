"""Find blocks of code in the documentation. The tests run them shortened, and `recipes.py` runs them in full."""

import re
import shlex
import textwrap
from pathlib import Path
from typing import NamedTuple

BLOCK = re.compile(r"^(?P<indent> *)(?P<fence>```+)(?P<language>.*)\n(?P<code>(?s:.*?))^(?P=indent)(?P=fence)$", re.MULTILINE)
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


class Block(NamedTuple):
    """Code of a page, the number of its first line, and the heading above it."""

    language: str
    line: int
    code: str
    heading: str = ""

    @property
    def file_name(self) -> str | None:
        """Return the name of the file that a block stands for, if its first line is a comment with that name."""
        named = re.match(r"# (\w+\.(?:py|yml))\n", self.code)
        return named[1] if named else None


def blocks_of(page: Path) -> list[Block]:
    """List the fenced blocks of a Markdown page in order, without indentation."""
    text = page.read_text()
    # Comments in blocks look like headings, so blank the blocks.
    outside = BLOCK.sub(lambda block: " " * len(block[0]), text)
    headings = [(match.start(), match[1]) for match in _HEADING.finditer(outside)]
    return [
        Block(
            match["language"].strip(),
            text.count("\n", 0, match.start("code")) + 1,
            textwrap.dedent(match["code"]),
            next((heading for start, heading in reversed(headings) if start < match.start()), ""),
        )
        for match in BLOCK.finditer(text)
    ]


def write_named_file(block: Block) -> None:
    """Write a block that is a file into the working directory."""
    if block.file_name:
        Path(block.file_name).write_text(block.code)


def commands_of(code: str) -> list[list[str]]:
    """Split commands into words, without comments."""
    lines = code.replace("\\\n", " ").splitlines()
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]
