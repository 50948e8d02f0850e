"""The binary interface against the last release: no name of libuvmalloc.so goes, no layout changes.

`python -m tests.library.test_abi` records a new release's. scripts/release counts the changes.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from uvmalloc.libraries import find_libraries

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).parent / "abi"


def types_of(include: Path, folder: Path) -> Path:
    """Describes the layouts of the public headers' types."""
    library, description = folder / "types.so", folder / "types.abi"
    compiler = shutil.which("g++") or "c++"
    command = [compiler, "-std=c++20", "-g", "-fPIC", "-shared", f"-I{include}"]
    subprocess.run([*command, RECORDED / "types.cpp", "-o", library], check=True)
    options = ["--drop-private-types", "--no-corpus-path", "--no-comp-dir-path", "--no-show-locs"]
    folders = ["--headers-dir", include / "uvmalloc", "--out-file", description]
    subprocess.run(["abidw", *options, *folders, library], check=True)
    return description


def changes(description: Path) -> str:
    """Returns what abidiff says of a description against the recorded one."""
    command = ["abidiff", "--suppressions", RECORDED / "allowed.suppr"]
    said = subprocess.run(
        [*command, RECORDED / "types.abi", description], capture_output=True, text=True
    )
    assert said.returncode in (0, 4, 12), said.stderr
    return said.stdout if said.returncode else ""


def symbols() -> set[str]:
    library = find_libraries().folder / "libuvmalloc.so"
    command = ["nm", "-D", "--defined-only", "--format=posix", library]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[0] for line in lines if " A " not in line}


def test_no_name_of_the_last_release_is_gone() -> None:
    recorded = set((RECORDED / "symbols.txt").read_text().split())
    assert len(recorded) > 100
    assert sorted(recorded - symbols()) == []


def test_no_layout_of_the_last_release_has_changed(tmp_path: Path) -> None:
    assert changes(types_of(ROOT / "include", tmp_path)) == ""


@pytest.mark.parametrize(
    ("old", "new", "is_change"),
    [
        ("  uint64_t budget_bytes;", "  uint64_t odd; uint64_t budget_bytes;", True),
        ("} uvmalloc_options;", "uint64_t added; } uvmalloc_options;", False),
    ],
    ids=["in the middle", "at the end"],
)
def test_a_changed_layout_is_seen(tmp_path: Path, old: str, new: str, is_change: bool) -> None:
    include = shutil.copytree(ROOT / "include", tmp_path / "include")
    header = include / "uvmalloc" / "uvmalloc.h"
    text = header.read_text()
    assert old in text
    header.write_text(text.replace(old, new, 1))
    assert bool(changes(types_of(include, tmp_path))) == is_change


if __name__ == "__main__":
    (RECORDED / "symbols.txt").write_text("\n".join(sorted(symbols())) + "\n")
    types_of(ROOT / "include", RECORDED)
    (RECORDED / "types.so").unlink()
