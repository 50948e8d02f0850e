"""Prints the source files affected by a change: changed files, and files that include them.

changed_sources.py FILE... < CHANGED

CHANGED has one path per line. Its paths and FILE are relative to the root of the repository.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from check_layers import includes

ROOT = Path(__file__).resolve().parent.parent


@functools.cache
def included_by(path: str) -> frozenset[str]:
    """Returns all headers of this tree that the file includes, directly or indirectly."""
    found: set[str] = set()
    to_read = [path]
    while to_read:
        for included in includes(ROOT, ROOT / to_read.pop()):
            if included not in found:
                found.add(included)
                to_read.append(included)
    return frozenset(found)


def main() -> int:
    changed = {line.strip() for line in sys.stdin}
    for file in sys.argv[1:]:
        if not changed.isdisjoint({file, *included_by(file)}):
            print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
