#!/usr/bin/env python3
"""Writes the pages of the site into a folder: the documents of the tree at their places, the files
that they link to, and the generated pages of the reference.

The command line comes from the program itself, the list of headers from include/uvmalloc.
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
import uvmalloc
from uvmalloc._cli.main import app

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\(([^)#\s]+)")
BEGIN = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")


def linked(page: Path) -> Iterator[Path]:
    """Yields the files of the tree that a page links to."""
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in target:
            file = (page.parent / target).resolve()
            if file.is_file() and file.is_relative_to(ROOT):
                yield file


def files_of_site() -> set[Path]:
    """Returns the documents, and the files that a reader can reach from them."""
    waiting = [ROOT / name for name in BEGIN]
    waiting += [file for file in (ROOT / "docs").rglob("*") if file.is_file()]
    found: set[Path] = set()
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            waiting += linked(file) if file.suffix == ".md" else []
    return found


def described(command: Any, name: str, level: int) -> Iterator[str]:
    """Yields the Markdown of a command, and of its commands."""
    context = typer.Context(command, info_name=name)
    yield f"{'#' * level} {name}\n\n{command.help or ''}\n\n"
    yield f"```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```\n\n"
    rows = [parameter.get_help_record(context) for parameter in command.params]
    shown = [row for row in rows if row is not None]
    if shown:
        yield "| option | meaning |\n|---|---|\n"
        for option, meaning in shown:
            # An argument's type is one of Python.
            yield f"| `{re.sub(' <.*>', '', option)}` | {meaning.replace('|', chr(92) + '|')} |\n"
        yield "\n"
    for each, child in getattr(command, "commands", {}).items():
        if not child.hidden:
            yield from described(child, f"{name} {each}", 2)


def command_line() -> str:
    return "".join(described(typer.main.get_command(app), "uvmalloc", 1))


def python_interface() -> str:
    # By the module that defines it: some functions are named like a module of the package.
    names = "".join(
        f"::: {getattr(uvmalloc, name).__module__}.{name}\n"
        f"    options: {{heading: uvmalloc.{name}, toc_label: {name}}}\n\n"
        for name in uvmalloc.__all__
    )
    return (
        "# Python\n\nThe names of the package `uvmalloc`. `import uvmalloc` costs nothing, and has "
        "no effect if uvmalloc is not active.\n[pytorch.md](pytorch.md#rfc-0023s-names) has the "
        f"names that are added to torch.\n\n{names}::: uvmalloc.memory_saver\n"
    )


def headers() -> str:
    rows = []
    for header in sorted((ROOT / "include" / "uvmalloc").rglob("*.h*")):
        name = header.relative_to(ROOT / "include").as_posix()
        page = re.sub(
            r"[./]|(?<=\w)_", lambda m: {".": "_8", "/": "_2", "_": "__"}[m[0]], header.name
        )
        rows.append(f"| [{name}](c/{page}.html) |\n")
    return (
        "# C and C++\n\nDoxygen makes these pages from the headers in `include/uvmalloc`. "
        "[library.md](library.md) says how to link.\n\n| header |\n|---|\n" + "".join(rows)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    shutil.rmtree(folder, ignore_errors=True)
    for file in files_of_site():
        copy = folder / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    reference = folder / "docs" / "reference"
    for name, text in {
        "command-line.md": command_line(),
        "python.md": python_interface(),
        "headers.md": headers(),
    }.items():
        (reference / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
