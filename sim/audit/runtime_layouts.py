"""Records where the functions of CUDA's static runtimes are, for stripped files.

    runtime_layouts.py LIBRARY                 exit 1 if runtime_layouts.inc lacks its layout
    runtime_layouts.py LIBRARY --add VERSION   adds its layout

LIBRARY is a `libcudart_static.a`, as the package nvidia-cuda-runtime has. It is one object file
whose functions are all in one section, so a linker keeps their distances. A stripped file still
lists where its functions begin, for exceptions (.eh_frame_hdr); the distances between these
beginnings are what the auditor recognizes (runtime_layouts.c).
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
LAYOUTS = HERE / "runtime_layouts.inc"
NAMES = HERE.parent / "cuda" / "cudart_symbols.txt"

SECTION = ".text"
# The auditor writes over the first 16 bytes of a function that begins at a multiple of 16.
ALIGNMENT = 16
NOWHERE = 0  # the unit at which no public function begins

_COMMENT = """\
// Where the public functions of CUDA's static runtimes are. runtime_layouts.py writes this file.
// A layout: its versions, the number of its functions, the distance from the first to the last in
// bytes, and a hash of the distances between them. A function: its distance from the first one in
// each layout, in units of 16 bytes; 0 if the layout lacks it.
"""
_LAYOUT = re.compile(r'^UVMSIM_LAYOUT\("([^"]+)", (\d+), (0x\w+), (0x\w+)\)$', re.MULTILINE)
_FUNCTION = re.compile(r"^UVMSIM_FUNCTION\((\w+), ([^)]+)\)$", re.MULTILINE)


@dataclass(frozen=True)
class Layout:
    functions: int
    span_bytes: int
    distances_hash: int


def _readelf(library: Path, *options: str) -> str:
    command = ["readelf", "--wide", *options, str(library)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _beginnings(library: Path) -> list[int]:
    """The offsets of all functions in the section, in order."""
    relocations = _readelf(library, "--relocs").split("'.rela.eh_frame'")[1]
    relocations = relocations.partition("Relocation section")[0]
    found = re.findall(rf" {re.escape(SECTION)} \+ ([0-9a-f]+)$", relocations, re.MULTILINE)
    return sorted({int(offset, 16) for offset in found})


def hash_of(numbers: list[int]) -> int:
    """FNV-1a, with 64-bit words instead of bytes."""
    result = 0xCBF29CE484222325
    for number in numbers:
        result = (result ^ number) * 0x100000001B3 % (1 << 64)
    return result


def layout_of(library: Path) -> Layout:
    begin = _beginnings(library)
    distances = [after - before for before, after in itertools.pairwise(begin)]
    return Layout(len(begin), begin[-1] - begin[0], hash_of(distances))


def functions_of(library: Path) -> dict[str, int]:
    """The units at which the functions begin that the simulator's runtime exports."""
    (section,) = re.findall(
        rf"^ +\[ *(\d+)\] {re.escape(SECTION)} ", _readelf(library, "--sections"), re.MULTILINE
    )
    first = _beginnings(library)[0]
    exported = set(NAMES.read_text().split())
    symbols = re.findall(
        rf"^ *\d+: ([0-9a-f]+) +\w+ FUNC +GLOBAL +\w+ +{section} (\w+)$",
        _readelf(library, "--symbols"),
        re.MULTILINE,
    )
    units = {}
    for value, name in symbols:
        unit, rest = divmod(int(value, 16) - first, ALIGNMENT)
        if name in exported:
            if rest != 0 or unit == NOWHERE:
                sys.exit(
                    f"{library}: {name} begins at {value}, where the auditor cannot replace it"
                )
            units[name] = unit
    return units


def known() -> tuple[dict[Layout, str], dict[str, list[int]]]:
    """The versions of each listed layout, and the units of each function."""
    text = LAYOUTS.read_text() if LAYOUTS.exists() else ""
    layouts = {
        Layout(int(functions), int(span, 16), int(distances_hash, 16)): versions
        for versions, functions, span, distances_hash in _LAYOUT.findall(text)
    }
    units = {
        name: [int(unit, 16) for unit in row.split(", ")] for name, row in _FUNCTION.findall(text)
    }
    return layouts, units


def add(library: Path, version: str) -> None:
    layouts, units = known()
    layout = layout_of(library)
    if layout in layouts:
        layouts[layout] = f"{layouts[layout]}, {version}"
    else:
        found = functions_of(library)
        for name in units.keys() | found.keys():
            row = units.get(name, [NOWHERE] * len(layouts))
            units[name] = [*row, found.get(name, NOWHERE)]
        layouts[layout] = version
    rows = [
        f'UVMSIM_LAYOUT("{versions}", {each.functions}, {each.span_bytes:#x}, '
        f"{each.distances_hash:#018x})"
        for each, versions in layouts.items()
    ]
    rows += [
        f"UVMSIM_FUNCTION({name}, {', '.join(f'{unit:#x}' for unit in row)})"
        for name, row in sorted(units.items())
    ]
    LAYOUTS.write_text(_COMMENT + "\n".join(rows) + "\n")


def is_known(library: Path) -> bool:
    """Returns whether the list has the library's layout and the place of each of its functions."""
    layouts, units = known()
    layout = layout_of(library)
    if layout not in layouts:
        return False
    column = list(layouts).index(layout)
    listed = {name: row[column] for name, row in units.items() if row[column] != NOWHERE}
    return listed == functions_of(library)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", type=Path)
    parser.add_argument("--add", metavar="VERSION")
    arguments = parser.parse_args()
    if arguments.add is not None:
        add(arguments.library, arguments.add)
    return 0 if is_known(arguments.library) else 1


if __name__ == "__main__":
    sys.exit(main())
