#!/usr/bin/env python3
"""Checks that includes, and imports of the Python package, go one way, and what rooms speak of.

A room is a folder. LAYERS names the rooms that each room may include besides itself. A room inside
another room has rules of its own. PUBLIC names the room of each header in include/uvmalloc, which
are installed and include only each other. PYTHON_LAYERS names the parts of the Python package that
each part may import. FOREIGN_WORDS names what the allocator does not know. Prints a line for each
include, import or word against these rules, and for each include of a folder without a line. Ends
with exit code 1 if there are any.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

# The folders of the allocator. Each may include the folders before it (allocator/README.md).
FOLDERS = (
    "policy", "base", "counters", "spans", "heap", "cache", "statistics", "small", "trace", "state",
    "streams", "placement", "inspection", "fork", "reclaim", "engine", "process",
)  # fmt: skip
BELOW_ALLOCATOR = "hints hints/sharing hints/oversubscription storage runtime"
ALLOCATOR = "allocator " + " ".join(f"allocator/{folder}" for folder in FOLDERS)


def allocator_layers() -> dict[str, str]:
    """Returns the layers. A folder may include the public headers beside it, and earlier ones."""
    layers = {}
    for index, folder in enumerate(FOLDERS):
        earlier = [f"allocator/{other}" for other in FOLDERS[:index]]
        if folder == "trace":  # a leaf: may only include these two
            earlier = ["allocator/base", "allocator/policy"]
        layers[f"allocator/{folder}"] = " ".join(["allocator", *earlier, BELOW_ALLOCATOR])
    return layers


ANY_ROOM = "*"
PIPELINES = "pipelines pipelines/plans pipelines/packing pipelines/tensors pipelines/credits"

LAYERS = {
    "runtime": "",
    "storage": "runtime",
    "hints": "storage runtime",
    "hints/sharing": "hints runtime",
    "hints/oversubscription": "hints storage runtime",
    "allocator": f"{ALLOCATOR} {BELOW_ALLOCATOR}",
    **allocator_layers(),
    "groups": f"{ALLOCATOR} {BELOW_ALLOCATOR}",
    "pipelines": "",
    "pipelines/packing": "",
    "pipelines/tensors": "",
    "pipelines/plans": "pipelines pipelines/packing pipelines/tensors",
    "pipelines/credits": "pipelines",
    "preload": f"{ALLOCATOR} {BELOW_ALLOCATOR}",
    "pytorch/interpose": f"preload {ALLOCATOR} {BELOW_ALLOCATOR}",
    "pytorch/plugin": f"pytorch/interpose {ALLOCATOR} {BELOW_ALLOCATOR}",
    "sim/torch": "pytorch/interpose sim",
    "sim": "",
    "sim/replay": "sim",
    "tools": f"{ALLOCATOR} {BELOW_ALLOCATOR}",
    "tools/oversubscription": (
        f"tools tools/machine_replay sim sim/replay {ALLOCATOR} {BELOW_ALLOCATOR}"
    ),
    "tools/machine_replay": f"tools sim sim/replay {ALLOCATOR} {BELOW_ALLOCATOR}",
    "tests": ANY_ROOM,
    "bench": f"tests {PIPELINES} tools sim sim/replay {ALLOCATOR} {BELOW_ALLOCATOR}",
}
PUBLIC_FOLDER = "include/uvmalloc/"
PUBLIC = {
    "runtime": "device_runtime.hpp log_level.hpp place.hpp registry.hpp uvmalloc_runtime.h",
    "storage": "facade.hpp place_set.hpp",
    "hints": "policy.hpp",
    "hints/oversubscription": "use_range.hpp",
    "allocator": (
        "allocator.hpp configuration.hpp cuda_memory_resource.hpp errors.hpp groups.hpp "
        "inspection.hpp kernel_uses.hpp limits.hpp memory_resource.hpp private_pools.hpp "
        "statistics.hpp streams.hpp tracing.hpp types.hpp uvmalloc.h"
    ),
    "groups": "uvmalloc_groups.h",
    "sim": "sim/uvmsim.h",
}
ROOM_OF_PUBLIC = {
    PUBLIC_FOLDER + header: room for room, headers in PUBLIC.items() for header in headers.split()
}
PYTHON = "pytorch/python/uvmalloc"
PYTHON_LAYERS = {
    "interface": "pipelines",  # all modules that the lines below do not name
    "pipelines": "interface",
    "_cli": "interface",
    "_trace": "interface _cli",
    "_cli/main.py": "interface _cli _trace",
    "__main__.py": "_cli/main.py",
}
# Only these files of the allocator know frameworks; texts for users may name them everywhere.
FOREIGN_WORDS = re.compile(r"framework|tensor", re.IGNORECASE)
FOREIGN_WORDS_ALLOWED = {
    "allocator/configuration.cpp",
    "allocator/process/framework_bridge.cpp",
    "allocator/process/framework_bridge.hpp",
}
TEXT = re.compile(r'"(?:[^"\\\n]|\\.)*"')
SUFFIXES = {".h", ".hpp", ".c", ".cpp", ".cu", ".inc"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:<(uvmalloc/[^>]+)>|"([^">]+/[^"]+)")', re.MULTILINE)


def sources(root: Path, room: str) -> Iterator[Path]:
    return (file for file in sorted((root / room).rglob("*")) if file.suffix in SUFFIXES)


def room_of(path: str) -> str | None:
    """Returns the innermost room of a path from the root, or None if the path is in no room."""
    if path in ROOM_OF_PUBLIC:
        return ROOM_OF_PUBLIC[path]
    parts = path.split("/")
    for length in range(len(parts) - 1, 0, -1):
        room = "/".join(parts[:length])
        if room in LAYERS:
            return room
    return None


def includes(root: Path, file: Path) -> Iterator[str]:
    """Yields the headers of this tree that a file includes, from the root; no generated headers."""
    for public, private in INCLUDE.findall(file.read_text()):
        path = f"include/{public}" if public else private
        if (root / path).is_file():
            yield path


def violations(root: Path) -> Iterator[str]:
    for room, allowed in LAYERS.items():
        accepted = {room, *allowed.split()}
        for file in sources(root, room):
            relative = str(file.relative_to(root))
            if room_of(relative) != room or ANY_ROOM in accepted:
                continue  # the file belongs to a room inside this one
            yield from forbidden(root, relative, room, accepted)
    for header in sources(root, PUBLIC_FOLDER):
        relative = str(header.relative_to(root))
        if relative not in ROOM_OF_PUBLIC:
            yield f"{relative} has no room in PUBLIC"
            continue
        room = ROOM_OF_PUBLIC[relative]
        yield from forbidden(root, relative, room, {room, *LAYERS[room].split()})
        for included in includes(root, header):
            if not included.startswith(PUBLIC_FOLDER):
                yield f"{relative} includes {included}, which is not installed"


def forbidden(root: Path, file: str, room: str, accepted: set[str]) -> Iterator[str]:
    for header in includes(root, root / file):
        other = room_of(header)
        if other is None:
            yield f"{file} includes {header}, whose room has no line in LAYERS"
        elif other not in accepted:
            yield f"{file} includes {header}: {room} may not include {other}"


def python_part(path: str) -> str:
    """Returns the part of a module or folder, by its path below the package."""
    first = path.split("/")[0]
    return next((part for part in (path, first) if part in PYTHON_LAYERS), "interface")


def imports(file: Path) -> Iterator[str]:
    """Yields the modules of the package that a file imports, as paths below the package."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            package, *words = name.split(".")
            if package == "uvmalloc" and words:
                # A name inside a module counts as the module: _cli.main.run as _cli/main.py.
                in_folder = len(words) > 1 and words[0] in PYTHON_LAYERS
                yield "/".join(words[:2]) + ".py" if in_folder else words[0]


def python_violations(root: Path) -> Iterator[str]:
    package = root / PYTHON
    for file in sorted(package.rglob("*.py")):
        path = str(file.relative_to(package))
        part = python_part(path)
        accepted = {part, *PYTHON_LAYERS[part].split()}
        for imported in imports(file):
            if python_part(imported) not in accepted:
                yield f"{PYTHON}/{path} imports {imported}: {part} may not import it"


def foreign_words(root: Path) -> Iterator[str]:
    for file in sources(root, "allocator"):
        relative = str(file.relative_to(root))
        if relative in FOREIGN_WORDS_ALLOWED:
            continue
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if found := FOREIGN_WORDS.search(TEXT.sub("", line)):
                yield f"{relative}:{number} names a {found[0].lower()}: the room knows none"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root
    found = [*violations(root), *python_violations(root), *foreign_words(root)]
    for line in found:
        print(line)
    print(f"{len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
