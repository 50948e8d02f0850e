#!/usr/bin/env python3
"""Prints the sizes of the parts of the tree: lines, private methods, headers included by a
header, words and examples of the pages for users.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from check_layers import LAYERS, includes, sources

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.pages import figures

ROOMS = ("allocator", "storage", "hints", "runtime", "preload")
ACCESS = r"\b(?:public|private|protected)\s*:"
TOKEN = re.compile(rf"[{{}};]|{ACCESS}|[^{{}};]+?(?={ACCESS})|[^{{}};]+")
CLASS = re.compile(r"\bclass\s+(?:alignas\([^)]*\)\s*|\[\[[^]]*\]\]\s*)*(\w+)[^;{]*\{")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
NO_METHOD = re.compile(
    r"\b(?:using|friend|typedef|static_assert|struct|class|enum)\b|=|std::function<"
)


def closure(root: Path, header: str) -> set[str]:
    """Returns all headers of this tree that a header includes, and the header itself."""
    seen: set[str] = set()
    waiting = [header]
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting += includes(root, root / path)
    return seen


def declares_method(statement: str) -> bool:
    """Whether a member declaration has a parameter list, and is neither a type nor a variable."""
    return bool(
        re.search(r"[\w>&*]\s+[*&]?\w+\s*\(", statement)
        and not NO_METHOD.search(statement.split("(")[0])
    )


def private_methods(text: str) -> Iterator[tuple[str, int]]:
    """Yields each class with the number of functions in its private sections."""
    text = COMMENT.sub("", text)
    for match in CLASS.finditer(text):
        depth, is_private, statement, count = 1, True, "", 0
        for token in TOKEN.findall(text[match.end() :]):
            if token == "{":
                if depth == 1:
                    count += is_private and declares_method(statement)
                    statement = ""
                depth += 1
            elif token == "}":
                depth -= 1
                if depth == 0:
                    break
            elif depth == 1 and re.fullmatch(ACCESS, token):
                is_private = not token.startswith("public")
            elif depth == 1 and token == ";":
                count += is_private and declares_method(statement)
                statement = ""
            elif depth == 1:
                statement += token
        yield match.group(1), count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root
    lines = {
        file: file.read_text().count("\n")
        for room in LAYERS
        for file in sources(root, room)
        if file.relative_to(root).parts[0] in ROOMS
    }
    print(f"lines of {', '.join(ROOMS)}: {sum(lines.values()):,}")
    print("largest files:")
    for file in sorted(lines, key=lambda file: -lines[file])[:5]:
        print(f"  {lines[file]:5} {file.relative_to(root)}")
    methods = [
        (count, name, file.relative_to(root))
        for file in lines
        if file.suffix == ".hpp"
        for name, count in private_methods(file.read_text())
    ]
    print("most private methods:")
    for count, name, path in sorted(methods, key=lambda entry: -entry[0])[:5]:
        print(f"  {count:5} {name}, {path}")
    resource = "include/uvmalloc/memory_resource.hpp"
    if (root / resource).is_file():
        print(f"headers of ours behind {resource}: {len(closure(root, resource))}")
    for name, count in figures().items():
        print(f"{name}: {count}")


if __name__ == "__main__":
    main()
