"""Lists the files whose code runs in a request of 3 MiB that no cache serves, on a fake device.

    files_on_path.py [--most COUNT]    exit 1 if there are more than COUNT files

Reads the counted lines of build/asan/bin/one_request, which the preset `asan` builds. A file counts
if a line of it runs, in allocator/, storage/, hints/, runtime/ or include/.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build" / "asan" / "bin" / "one_request"
ROOMS = ("allocator", "storage", "hints", "runtime", "include")


def lines_that_ran(folder: Path) -> dict[str, int]:
    """Runs the program with its counts written below `folder`. Returns lines by file."""
    subprocess.run([PROGRAM], env={**os.environ, "GCOV_PREFIX": str(folder)}, check=True)
    found: dict[str, set[int]] = {}
    for counts in folder.rglob("*.gcda"):
        notes = Path("/") / counts.relative_to(folder).with_suffix(".gcno")
        shutil.copy(notes, counts.with_suffix(".gcno"))
        command = ["gcov", "--json-format", "--stdout", str(counts)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for document in text.splitlines():
            for file in json.loads(document)["files"]:
                path = Path(file["file"]).resolve()
                if not path.is_relative_to(ROOT) or path.relative_to(ROOT).parts[0] not in ROOMS:
                    continue
                ran = {line["line_number"] for line in file["lines"] if line["count"] > 0}
                if ran:
                    found.setdefault(str(path.relative_to(ROOT)), set()).update(ran)
    return {file: len(lines) for file, lines in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=None)
    arguments = parser.parse_args()
    if not PROGRAM.is_file():
        print(f"files_on_path.py: there is no {PROGRAM.relative_to(ROOT)}: scripts/build asan")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        files = lines_that_ran(Path(folder))
    for file, lines in sorted(files.items()):
        print(f"{lines:4} {file}")
    sources = sum(file.endswith(".cpp") for file in files)
    print(f"{len(files)} files, {sources} of them sources")
    return 1 if arguments.most is not None and len(files) > arguments.most else 0


if __name__ == "__main__":
    sys.exit(main())
