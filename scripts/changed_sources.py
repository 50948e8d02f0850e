"""Which source files a change concerns: those that it changes, and those that include them.

changed_sources.py BUILD FILE... < CHANGED

BUILD is a folder that ninja has built: it knows what each file includes. CHANGED has a path a line,
relative to the root of the repository, as FILE is. A file that was never built is concerned. Prints
the files that are concerned.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def included_by(build: Path) -> dict[Path, set[Path]]:
    """What each source file includes, itself among them, as ninja noted when it built."""
    text = subprocess.run(
        ["ninja", "-C", build, "-t", "deps"], capture_output=True, text=True, check=True
    ).stdout
    at = functools.cache(lambda line: (build / line).resolve())  # headers are listed very often
    found: dict[Path, set[Path]] = {}
    for entry in text.split("\n\n"):
        lines = [line.strip() for line in entry.splitlines() if line.startswith("    ")]
        paths = [at(line) for line in lines]
        if paths:
            found.setdefault(paths[0], set()).update(paths)
    return found


def concerned(files: list[str], changed: set[Path], included: dict[Path, set[Path]]) -> list[str]:
    def concerns(file: str) -> bool:
        path = (ROOT / file).resolve()
        return path not in included or not changed.isdisjoint(included[path] | {path})

    return [file for file in files if concerns(file)]


def main() -> int:
    build, *files = sys.argv[1:]
    changed = {(ROOT / line.strip()).resolve() for line in sys.stdin if line.strip()}
    for file in concerned(files, changed, included_by((ROOT / build).resolve())):
        print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
