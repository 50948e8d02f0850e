#!/usr/bin/env python3
"""Checks that includes go one way.

A room is a folder. LAYERS names the rooms that each room may include besides itself. A room inside
another room has rules of its own. cmake/public_headers.txt lists the headers that are installed;
they include only each other. Prints a line for each include against these rules, and for each
include of a folder without a line. Ends with exit code 1 if there are any.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

# Of the allocator; each may include those before it. allocator/README.md says what they hold.
FOLDERS = (
    "base", "policy", "counters", "spans", "heap", "cache", "statistics", "streams", "small",
    "fork", "engine", "trace", "process",
)  # fmt: skip
BELOW_ALLOCATOR = "hints hints/arbiter hints/live storage runtime"
ALLOCATOR = "allocator " + " ".join(f"allocator/{folder}" for folder in FOLDERS)


def allocator_layers() -> dict[str, str]:
    """Each folder may include the public headers beside it, and earlier folders."""
    layers = {}
    for index, folder in enumerate(FOLDERS):
        earlier = [f"allocator/{other}" for other in FOLDERS[:index]]
        if folder == "trace":  # a leaf, which the engine calls
            earlier = ["allocator/base", "allocator/policy"]
        elif folder == "engine":
            earlier.append("allocator/trace")
        layers[f"allocator/{folder}"] = " ".join(["allocator", *earlier, BELOW_ALLOCATOR])
    return layers


LAYERS = {
    "runtime": "",
    "storage": "runtime",
    "hints": "storage runtime",
    "hints/arbiter": "",
    "hints/plan": "",
    "hints/live": "hints hints/plan storage runtime",
    "allocator": f"{ALLOCATOR} {BELOW_ALLOCATOR}",
    **allocator_layers(),
    "preload": f"{ALLOCATOR} {BELOW_ALLOCATOR}",
    "pytorch/interpose": f"preload {ALLOCATOR} {BELOW_ALLOCATOR}",
    "pytorch/plugin": f"pytorch/interpose {ALLOCATOR} {BELOW_ALLOCATOR}",
    "sim/torch": "pytorch/interpose sim",
    "sim": "",
    "sim/replay": "sim",
    "tools": f"{ALLOCATOR} {BELOW_ALLOCATOR}",
    "tools/oversubscription": (
        "hints/arbiter hints/plan tools/machine_replay sim sim/replay "
        f"{ALLOCATOR} {BELOW_ALLOCATOR}"
    ),
    "tools/machine_replay": f"sim sim/replay {ALLOCATOR} {BELOW_ALLOCATOR}",
    "bench": f"tools sim sim/replay {ALLOCATOR} {BELOW_ALLOCATOR}",
}
PUBLIC = "cmake/public_headers.txt"
SUFFIXES = {".h", ".hpp", ".c", ".cpp", ".cu", ".inc"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]uvmalloc/([^>"]+)[>"]', re.MULTILINE)


def sources(root: Path, room: str) -> Iterator[Path]:
    return (file for file in sorted((root / room).rglob("*")) if file.suffix in SUFFIXES)


def room_of(path: str) -> str | None:
    """The innermost room of a path from the root; None where it is in none."""
    parts = path.split("/")
    for length in range(len(parts) - 1, 0, -1):
        room = "/".join(parts[:length])
        if room in LAYERS:
            return room
    return None


def header_path(root: Path, included: str) -> str | None:
    """Where <uvmalloc/INCLUDED> lies, from the root; None where a build makes it."""
    rooms = ("", "include/uvmalloc/", "allocator/", "runtime/")
    for candidate in (f"{room}{included}" for room in rooms):
        if (root / candidate).is_file():
            return candidate
    return None


def includes(root: Path, file: Path) -> Iterator[str]:
    for included in INCLUDE.findall(file.read_text()):
        path = header_path(root, included)
        if path is not None:
            yield path


def violations(root: Path) -> Iterator[str]:
    for room, allowed in LAYERS.items():
        accepted = {room, *allowed.split()}
        for file in sources(root, room):
            relative = str(file.relative_to(root))
            if room_of(relative) != room:
                continue  # of a room inside this one
            for header in includes(root, file):
                other = room_of(header)
                if other is None:
                    yield f"{relative} includes {header}, whose room has no line in LAYERS"
                elif other not in accepted:
                    yield f"{relative} includes {header}: {room} may not include {other}"


def public_headers(root: Path) -> list[str]:
    """From the root, without comments; none where a tree has no list."""
    file = root / PUBLIC
    lines = file.read_text().splitlines() if file.is_file() else []
    return [line for line in lines if line and not line.startswith("#")]


def leaks(root: Path) -> Iterator[str]:
    """Public headers that are missing, or include what is not installed."""
    public = public_headers(root)
    for header in public:
        if not (root / header).is_file():
            yield f"{PUBLIC} lists {header}, which does not exist"
            continue
        for included in includes(root, root / header):
            if included not in public:
                yield f"{header} includes {included}, which {PUBLIC} does not list"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root
    found = [*violations(root), *leaks(root)]
    for line in found:
        print(line)
    print(f"{len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
