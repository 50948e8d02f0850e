"""Translates source files from CUDA to HIP by tables of names.

Replaces whole words only, in comments and strings too. Every word that looks like a name of CUDA
must have a row in a table. A word without a row, or at a place that its row does not allow, is an
error; then nothing is written. Files keep their path below the root; "cuda" in a path is translated
as in the text.

With --check it also writes a C++ file that compares the type of every bound entry point with its
declaration. Compiling that file proves that calls through looked-up names have the right types.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from dataclasses import dataclass
from pathlib import Path

HOWS = ("same", "cast", "shim", "optional", "word", "header")
WORD = re.compile(r"[A-Za-z_]\w*")
# Names of the driver's interface. Names of the runtime's interface contain "cuda".
DRIVER_NAME = re.compile(r"cu[A-Z]\w*|CU[a-z_]\w*")
INCLUDE = re.compile(r"(#\s*include\s*<)([^>]+)(>)")
BINDING = re.compile(r'bind\.\w+\(api->(\w+),\s*"(\w+)"\)')


class TranslationError(Exception):
    """The tables do not cover the text, or contain an error."""


@dataclass(frozen=True)
class Row:
    cuda: str
    hip: str
    since: str
    how: str

    def version(self) -> int:
        """Returns `since` as a HIP_VERSION number with patch 0, or 0 if `since` is empty."""
        major, _, minor = (self.since or "0.0").partition(".")
        return int(major) * 10_000_000 + int(minor) * 100_000


def read_tables(paths: list[Path]) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for path in paths:
        lines = (line for line in path.read_text().splitlines() if not line.startswith("#"))
        for fields in csv.DictReader(lines):
            row = Row(**fields)
            if row.how not in HOWS:
                raise TranslationError(
                    f"{path}: {row.cuda} is '{row.how}'; accepted: {', '.join(HOWS)}"
                )
            if row.cuda in rows:
                raise TranslationError(f"{path}: {row.cuda} has two rows")
            rows[row.cuda] = row
    return rows


def is_cuda_name(word: str) -> bool:
    return DRIVER_NAME.fullmatch(word) is not None or "cuda" in word.lower()


def is_looked_up(text: str, start: int, end: int) -> bool:
    """Whether the word is a whole string literal, as in a lookup of an entry point."""
    return text[start - 1 : start] == '"' and text[end : end + 1] == '"'


def translate(text: str, rows: dict[str, Row], where: str) -> str:
    """Returns the text in HIP. Raises TranslationError, which has a line for each word that cannot
    be translated.
    """
    complaints: list[str] = []

    def place(position: int) -> str:
        return f"{where}:{text.count(chr(10), 0, position) + 1}"

    def of_header(match: re.Match[str]) -> str:
        row = rows.get(match[2])
        return match[0] if row is None or row.how != "header" else match[1] + row.hip + match[3]

    text = INCLUDE.sub(of_header, text)

    def of_word(match: re.Match[str]) -> str:
        word = match[0]
        row = rows.get(word)
        if row is None:
            if is_cuda_name(word):
                complaints.append(f"{place(match.start())}: {word} has no row in the table")
            return word
        if row.how == "shim" and not is_looked_up(text, match.start(), match.end()):
            complaints.append(f"{place(match.start())}: {word} is called, but its twin differs")
        return row.hip

    translated = WORD.sub(of_word, text)
    if complaints:
        raise TranslationError("\n".join(complaints))
    return translated


def check_of_types(translated: str, rows: dict[str, Row]) -> str:
    """Returns C++ that compares the type of each pointer in the translated driver_api with the
    declaration of its function.
    """
    by_name = {row.hip: row for row in rows.values()}
    lines = [
        "// Written by hipify/translate.py.",
        "#ifndef __HIP_DISABLE_CPP_FUNCTIONS__",
        "#define __HIP_DISABLE_CPP_FUNCTIONS__",
        "#endif",
        "#define HIP_FORCE_API_VERSION 700  // hipMemAdvise as the library has it",
        '#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // of contexts',
        "#include <type_traits>",
        "",
        '#include "runtime/hip/driver_api.hpp"',
        "",
        "namespace uvm::hip {",
    ]
    for line in translated.splitlines():
        if line.startswith(("#if", "#else", "#endif")):
            lines.append(line)
        for field, name in BINDING.findall(line):
            row = by_name[name]
            compared = f"decltype(DriverApi::{field}), decltype(&{name})"
            lines += [
                f"#if HIP_VERSION >= {row.version()}",
                f"static_assert(std::is_same_v<{compared}>);",
                "#endif",
            ]
    return "\n".join([*lines, "}  // namespace uvm::hip", ""])


def write_if_changed(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=Path, action="append", required=True)
    parser.add_argument("--root", type=Path, required=True, help="folder that the files lie below")
    parser.add_argument("--output", type=Path, required=True, help="folder of the translation")
    parser.add_argument("--check", type=Path, help="file that compares types; wants driver_api.cpp")
    parser.add_argument("files", type=Path, nargs="+", help="relative to the root")
    arguments = parser.parse_args()

    try:
        rows = read_tables(arguments.table)
        written = {}
        for file in arguments.files:
            name, text = str(file), (arguments.root / file).read_text()
            written[translate(name, rows, name)] = translate(text, rows, name)
    except TranslationError as error:
        print(f"translate.py: {error}", file=sys.stderr)
        return 1
    for name, text in written.items():
        write_if_changed(arguments.output / name, text)
    if arguments.check is not None:
        bound = next(text for name, text in written.items() if name.endswith("driver_api.cpp"))
        write_if_changed(arguments.check, check_of_types(bound, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
