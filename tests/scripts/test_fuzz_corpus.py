"""scripts/fuzz_corpus.py: a folder of sequences as one file, and back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "fuzz_corpus.py"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_what_is_packed_is_unpacked(tmp_path: Path) -> None:
    folder, again = tmp_path / "folder", tmp_path / "again"
    folder.mkdir()
    again.mkdir()
    sequences = [b"\xff\x00", b"\x01", bytes(range(256)), b"\x00\x01"]
    for number, sequence in enumerate([*sequences, b""]):
        (folder / str(number)).write_bytes(sequence)
    corpus = tmp_path / "corpus.hex"
    assert run("pack", corpus, folder).returncode == 0
    assert corpus.read_text().splitlines()[:3] == ["01", "0001", "ff00"]
    assert run("unpack", corpus, again).returncode == 0
    assert sorted(path.read_bytes() for path in again.iterdir()) == sorted(sequences)


def test_another_action_is_refused(tmp_path: Path) -> None:
    refused = run("pak", tmp_path / "corpus.hex", tmp_path)
    assert refused.returncode != 0
    assert "fuzz_corpus.py pack FILE FOLDER" in refused.stderr
