"""scripts/fuzz_corpus.py packs a folder of sequences into one archive, and unpacks it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "fuzz_corpus.py"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_what_is_packed_or_added_is_unpacked(tmp_path: Path) -> None:
    folder, again = tmp_path / "folder", tmp_path / "again"
    folder.mkdir()
    again.mkdir()
    sequences = [b"\xff\x00", b"\x01", bytes(range(256))]
    for number, sequence in enumerate([*sequences, b""]):
        (folder / str(number)).write_bytes(sequence)
    corpus, added = tmp_path / "corpus.bin", tmp_path / "added"
    added.write_bytes(b"\x00\x01")
    assert run("pack", corpus, folder).returncode == 0
    assert run("add", corpus, added).returncode == 0
    assert corpus.read_bytes()[:17] == b"\1\0\0\0\x01\2\0\0\0\x00\x01\2\0\0\0\xff\x00"
    assert run("unpack", corpus, again).returncode == 0
    assert sorted(path.read_bytes() for path in again.iterdir()) == sorted([*sequences, b"\0\1"])


def test_another_action_is_refused(tmp_path: Path) -> None:
    refused = run("pak", tmp_path / "corpus.bin", tmp_path)
    assert refused.returncode != 0
    assert "fuzz_corpus.py pack ARCHIVE FOLDER" in refused.stderr
