"""Fails on an include against the arrows: a room, or a folder of the allocator, includes one above
it. allocator/README.md has the order."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Each includes only itself and what is in front of it; the last two may include each other.
ROOMS = {"runtime": 0, "storage": 1, "hints": 2, "allocator": 3, "preload": 4, "pytorch": 4}
FOLDERS = (
    "base", "policy", "counters", "spans", "heap", "cache", "statistics", "streams", "small",
    "fork", "engine", "trace", "process",
)  # fmt: skip
# The trace is a leaf that the engine calls; these folders know nothing of what lies between.
BESIDE = {"trace": {"base", "policy"}}
ALLOWED_ABOVE = {"engine": {"trace"}}
_INCLUDE = re.compile(r'^#include <uvmalloc/(\w+)/(?:(\w+)/)?[\w.]+>', re.MULTILINE)


def violations(root: Path) -> list[str]:
    """One line for each include against the arrows."""
    found = []
    for room in ROOMS:
        for file in sorted((root / room).rglob("*.[ch]pp")):
            inside = file.relative_to(root / room).parts
            folder = inside[0] if room == "allocator" and len(inside) > 1 else ""
            for other, other_folder in _INCLUDE.findall(file.read_text(encoding="utf-8")):
                if other in ROOMS and ROOMS[other] > ROOMS[room]:
                    found.append(f"{file.relative_to(root)} includes {other}/")
                inside_allocator = other == room == "allocator" and folder and other_folder
                if inside_allocator and not _may_include(folder, other_folder):
                    found.append(f"{file.relative_to(root)} includes allocator/{other_folder}/")
    return found


def _may_include(folder: str, other: str) -> bool:
    if folder == other or other in ALLOWED_ABOVE.get(folder, ()):
        return True
    if folder in BESIDE:
        return other in BESIDE[folder]
    return FOLDERS.index(other) < FOLDERS.index(folder)


if __name__ == "__main__":
    lines = violations(ROOT)
    print("\n".join(lines))
    sys.exit(1 if lines else 0)
