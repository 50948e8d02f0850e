"""Writes symbol names and version scripts of the stand-in for HIP from its list of symbols.

The list has a line for each exported name: the version of HIP that introduced it, and the name. The
output is the names alone, for generate_stubs.py, and a version script for each library: one node
for each version up to the library's own, each inheriting the one before. Later names are not
exported.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

Version = tuple[int, ...]


def version_of(text: str) -> Version:
    return tuple(int(part) for part in text.split("."))


def read_symbols(path: Path) -> dict[str, str]:
    """Names in the order of the list, with the versions that introduced them."""
    symbols: dict[str, str] = {}
    for line in path.read_text().splitlines():
        version, name = line.split()
        if name in symbols:
            raise ValueError(f"{path}: {name} is listed twice")
        symbols[name] = version
    return symbols


def version_script(symbols: dict[str, str], newest: str) -> str:
    versions = sorted({*symbols.values()}, key=version_of)
    lines: list[str] = []
    before = ""
    for version in versions:
        if version_of(version) > version_of(newest):
            continue
        names = " ".join(f"{name};" for name, node in symbols.items() if node == version)
        lines.append(f"hip_{version} {{ global: {names} local: *; }}{before};")
        before = f" hip_{version}"
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--symbols", type=Path, required=True)
    parser.add_argument("--names", type=Path, required=True, help="file for only the names")
    parser.add_argument(
        "--map", nargs=2, action="append", default=[], metavar=("VERSION", "FILE"), required=True
    )
    arguments = parser.parse_args()
    symbols = read_symbols(arguments.symbols)
    arguments.names.write_text("".join(f"{name}\n" for name in symbols))
    for version, file in arguments.map:
        Path(file).write_text(version_script(symbols, version))
    return 0


if __name__ == "__main__":
    sys.exit(main())
