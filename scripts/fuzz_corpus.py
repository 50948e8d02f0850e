"""Converts the fuzzer's corpus between one archive and a folder with a file for each sequence.

fuzz_corpus.py unpack ARCHIVE FOLDER    writes the sequences of ARCHIVE into FOLDER
fuzz_corpus.py pack ARCHIVE FOLDER      writes ARCHIVE from those of FOLDER, the shortest first
fuzz_corpus.py add ARCHIVE FILE         adds the sequence in FILE to ARCHIVE

An archive holds, for each sequence, its length as a 32-bit little-endian number and its bytes.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path


def read(archive: Path) -> list[bytes]:
    stored, sequences, at = archive.read_bytes(), [], 0
    while at < len(stored):
        (length,) = struct.unpack_from("<I", stored, at)
        sequences.append(stored[at + 4 : at + 4 + length])
        at += 4 + length
    return sequences


def write(archive: Path, sequences: list[bytes]) -> None:
    ordered = sorted(set(sequences) - {b""}, key=lambda s: (len(s), s))
    archive.write_bytes(b"".join(struct.pack("<I", len(s)) + s for s in ordered))


def unpack(archive: Path, folder: Path) -> None:
    for number, sequence in enumerate(read(archive)):
        (folder / f"{number:05}").write_bytes(sequence)


def pack(archive: Path, folder: Path) -> None:
    write(archive, [path.read_bytes() for path in folder.iterdir()])


def add(archive: Path, file: Path) -> None:
    write(archive, [*read(archive), file.read_bytes()])


if __name__ == "__main__":
    actions = {"unpack": unpack, "pack": pack, "add": add}
    if len(sys.argv) != 4 or sys.argv[1] not in actions:
        raise SystemExit(__doc__)
    actions[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
