"""Computes line coverage by room and by file from gcovr's JSON.

coverage_table.py LINES COVERAGE [--missing] [--least PERCENT]

Reads LINES (gcovr --json), writes COVERAGE and prints a table by room. With --missing, the table is
by file and lists the numbers of lines that did not run. Exits with 1 if a room's share is below
PERCENT.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("allocator", "groups", "storage", "hints", "runtime", "pipelines")


@dataclass
class Coverage:
    """Executable lines, and the lines that ran."""

    lines: set[tuple[str, int]] = field(default_factory=set)
    run: set[tuple[str, int]] = field(default_factory=set)

    def add(self, other: Coverage) -> None:
        self.lines |= other.lines
        self.run |= other.run

    @property
    def percent(self) -> float:
        return 100 * len(self.run) / len(self.lines) if self.lines else 0.0

    def missing(self) -> list[int]:
        return sorted(number for _, number in self.lines - self.run)


def read_files(lines_file: Path) -> dict[str, Coverage]:
    """Returns coverage by path from the root. The build reaches headers through a link."""
    files: dict[str, Coverage] = defaultdict(Coverage)
    for entry in json.loads(lines_file.read_text(encoding="utf-8"))["files"]:
        path = (ROOT / entry["file"]).resolve()
        if not path.is_relative_to(ROOT):
            continue
        name = str(path.relative_to(ROOT))
        if name.split("/")[0] not in ROOMS:
            continue
        for line in entry["lines"]:
            if line["gcovr/noncode"]:
                continue
            key = (name, line["line_number"])
            files[name].lines.add(key)
            if line["count"] > 0:
                files[name].run.add(key)
    return dict(sorted(files.items()))


def ranges(numbers: Iterable[int]) -> str:
    """Formats [1, 2, 3, 7] as "1-3 7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def main() -> int:
    parser = argparse.ArgumentParser(description="Line coverage by room.")
    parser.add_argument("lines", type=Path)
    parser.add_argument("coverage", type=Path)
    parser.add_argument("--missing", action="store_true", help="by file, with the missing lines")
    parser.add_argument("--least", type=float, default=90.0, metavar="PERCENT")
    arguments = parser.parse_args()

    files = read_files(arguments.lines)
    rooms = {room: Coverage() for room in ROOMS}
    for name, covered in files.items():
        rooms[name.split("/")[0]].add(covered)
    arguments.coverage.write_text(
        json.dumps(
            {
                "rooms": {
                    room: {
                        "lines": len(covered.lines),
                        "run": len(covered.run),
                        "percent": round(covered.percent, 1),
                    }
                    for room, covered in rooms.items()
                },
                "missing": {name: covered.missing() for name, covered in files.items()},
            },
            indent=1,
        )
        + "\n",
        encoding="utf-8",
    )
    for room, covered in rooms.items():
        print(f"{room:<10} {len(covered.run):>5} of {len(covered.lines):>5} lines ", end="")
        print(f"{covered.percent:6.1f} %")
        for name, one in files.items() if arguments.missing else ():
            if name.startswith(f"{room}/"):
                print(f"  {name:<46} {one.percent:6.1f} %  {ranges(one.missing())}".rstrip())
    low = [room for room, covered in rooms.items() if covered.percent < arguments.least]
    for room in low:
        print(f"coverage: FAILED: {room}/ has less than {arguments.least:g} %")
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main())
