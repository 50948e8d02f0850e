"""The pages for users: their words, and their blocks of code.

A block of the language `sh` or `python` runs as written. A comment before a block says otherwise:

    <!-- not run: REASON -->      only its syntax is checked
    <!-- file: NAME -->           the block is also saved under this name for later blocks
    <!-- exit code: N -->         the block ends with this exit code
    <!-- output -->               a block `text`: the block before it has printed these lines
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
LANGUAGES = ("sh", "python", "text", "yaml")
_BLOCK = re.compile(r"(?:^<!-- ([^\n]*) -->\n)?^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of code of a page."""

    language: str
    text: str
    comment: str

    @property
    def is_code(self) -> bool:
        return self.language in ("sh", "python")

    @property
    def reason_not_to_run(self) -> str:
        return (
            self.comment.removeprefix("not run: ") if self.comment.startswith("not run: ") else ""
        )

    @property
    def file(self) -> str:
        return self.comment.removeprefix("file: ") if self.comment.startswith("file: ") else ""

    @property
    def exit_code(self) -> int:
        return int(self.comment.split()[-1]) if self.comment.startswith("exit code: ") else 0


def blocks_of(page: Path) -> Iterator[Block]:
    for comment, language, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        yield Block(language, text, comment)


def figures() -> dict[str, int]:
    """Counts the words of the pages, the blocks that run, and those that do not."""
    code = [block for page in PAGES for block in blocks_of(page) if block.is_code]
    return {
        "user_words": sum(len(page.read_text(encoding="utf-8").split()) for page in PAGES),
        "examples_run": sum(not block.reason_not_to_run for block in code),
        "examples_not_run": sum(bool(block.reason_not_to_run) for block in code),
    }
