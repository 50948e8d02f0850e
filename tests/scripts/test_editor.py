"""An editor understands the files of a fresh clone, because compile_flags.txt needs no build."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (".cpp", ".hpp", ".h", ".c", ".cu")
QUOTED = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
# A build makes these files; one source file includes each.
MADE = {
    "torch_names.inc",
    "runtime_names.inc",
    "runtime/hip/driver_api.hpp",
    "runtime/hip/hip_runtime.hpp",
}


def files_of_the_clone() -> list[Path]:
    command = ["git", "-C", ROOT, "ls-files", "-z"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    paths = (ROOT / name for name in listed.split("\0") if name.endswith(SOURCES))
    return [path for path in paths if path.is_file()]


def test_every_included_header_of_ours_lies_in_the_clone() -> None:
    files = files_of_the_clone()
    assert len(files) > 500
    missing = {
        included
        for file in files
        for included in QUOTED.findall(file.read_text())
        if not (ROOT / included).is_file() and not (file.parent / included).is_file()
    }
    assert missing == MADE


@pytest.mark.slow
@pytest.mark.parametrize(
    "file",
    [
        "allocator/engine/engine.cpp",
        "hints/oversubscription/live_plan.cpp",
        "pipelines/plans/plan_calls.cpp",
    ],
)
def test_a_compiler_reads_a_file_with_the_flags_of_the_clone(file: str) -> None:
    compiler = shutil.which("clang++") or "c++"
    flags = (ROOT / "compile_flags.txt").read_text().split()
    done = subprocess.run(
        [compiler, *flags, "-fsyntax-only", file], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
