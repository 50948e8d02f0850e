"""The headers of the C interface, in C11 and in C++17, with GCC and with Clang."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

INCLUDE = Path(__file__).resolve().parents[2] / "include"
HEADERS = sorted(file.name for file in (INCLUDE / "uvmalloc").glob("*.h"))


@pytest.mark.parametrize("standard", ["c11", "c++17"])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_it_compiles_without_a_warning(tmp_path: Path, compiler: str, standard: str) -> None:
    assert shutil.which(compiler), f"{compiler} is not installed"
    source = tmp_path / ("header.c" if standard == "c11" else "header.cpp")
    source.write_text("".join(f"#include <uvmalloc/{name}>\n" for name in HEADERS * 2))
    options = [f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{INCLUDE}"]
    command = [compiler, *options, "-fsyntax-only", source]
    said = subprocess.run(command, capture_output=True, text=True)
    assert (said.returncode, said.stderr) == (0, "")
