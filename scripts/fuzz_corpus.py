"""Converts the fuzzer's corpus between one file with a line for each sequence and a folder with a
file for each.

fuzz_corpus.py unpack FILE FOLDER    writes the sequences of FILE into FOLDER
fuzz_corpus.py pack FILE FOLDER      writes FILE from those of FOLDER, the shortest first
"""

from __future__ import annotations

import sys
from pathlib import Path


def unpack(file: Path, folder: Path) -> None:
    for number, line in enumerate(file.read_text().splitlines()):
        (folder / f"{number:05}").write_bytes(bytes.fromhex(line))


def pack(file: Path, folder: Path) -> None:
    sequences = sorted((path.read_bytes() for path in folder.iterdir()), key=lambda s: (len(s), s))
    file.write_text("".join(f"{sequence.hex()}\n" for sequence in sequences if sequence))


if __name__ == "__main__":
    actions = {"unpack": unpack, "pack": pack}
    if len(sys.argv) != 4 or sys.argv[1] not in actions:
        raise SystemExit(__doc__)
    actions[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
