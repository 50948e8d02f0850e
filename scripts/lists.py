#!/usr/bin/env python3
"""Writes the lists that a page and the Python package take from other files of the tree.

The table of settings in docs/settings.md and the accepted words of the command line come from
uvmalloc, the versions of the simulated driver from sim/cuda/driver_versions.def. With --check
it writes nothing, names each file that would change, and ends with exit code 1 if there is one.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "pytorch" / "python"))

from uvmalloc._cli import library_calls  # noqa: E402

PAGE = "docs/settings.md"
WORDS = "pytorch/python/uvmalloc/_cli/accepted.py"
DRIVERS = "sim/cuda/driver_versions.def"

BEGIN = "<!-- scripts/lists.py writes this table -->\n"
END = "<!-- end of the table -->\n"
WORDS_OF = {
    "POLICIES": "UVMALLOC_POLICY",
    "MOVES": "UVMALLOC_MOVE",
    "LOG_LEVELS": "UVMALLOC_LOG",
}


def table_of(settings: list[dict[str, str]]) -> str:
    lines = ["| variable | default | accepted | meaning |", "|---|---|---|---|"]
    for setting in settings:
        default = f"`{setting['default']}`" if setting["default"] else ""
        accepted = setting["accepted"].replace("<", r"\<")
        meaning = setting["description"][0].upper() + setting["description"][1:]
        meaning = meaning.replace("<", r"\<")
        lines.append(f"| `{setting['name']}` | {default} | {accepted} | {meaning} |")
    return "".join(line + "\n" for line in lines)


def with_table(page: str, settings: list[dict[str, str]]) -> str:
    before, rest = page.split(BEGIN)
    return before + BEGIN + "\n" + table_of(settings) + "\n" + END + rest.split(END)[1]


def with_words(module: str, settings: list[dict[str, str]], drivers: list[str]) -> str:
    accepted = {setting["name"]: setting["accepted"].split(", ") for setting in settings}
    lists = {name: accepted[setting] for name, setting in WORDS_OF.items()}
    lists["DRIVER_VERSIONS"] = drivers
    for name, words in lists.items():
        line = f"{name} = ({', '.join(json.dumps(word) for word in words)})"
        module, found = re.subn(rf"^{name} = .*$", line, module, flags=re.MULTILINE)
        if found != 1:
            raise SystemExit(f"lists.py: {WORDS} has {found} lines of {name}; it needs one")
    return module


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--root", type=Path, default=ROOT)
    library = ROOT / "build" / "release" / "lib" / "libuvmalloc_preload.so"
    parser.add_argument("--library", type=Path, default=library)
    arguments = parser.parse_args()
    root: Path = arguments.root
    settings = library_calls.doctor(arguments.library)["configuration"]
    drivers = re.findall(
        r'^UVMSIM_DRIVER\(\d+, "(.+)"\)', (root / DRIVERS).read_text(), re.MULTILINE
    )
    page, module = (root / PAGE).read_text(), (root / WORDS).read_text()
    files = {PAGE: with_table(page, settings), WORDS: with_words(module, settings, drivers)}
    changed = [name for name, text in files.items() if (root / name).read_text() != text]
    for name in changed:
        if arguments.check:
            print(f"{name} is not what scripts/lists.py writes")
        else:
            (root / name).write_text(files[name])
    return 1 if changed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
