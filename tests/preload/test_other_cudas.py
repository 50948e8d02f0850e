"""A torch that was built for another CUDA than the plugin keeps its own allocators, and one line
says what is needed. The loader takes two empty libraries and a version file for a torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from uvmalloc._cli import doctor
from uvmalloc._cli.environment import without_settings
from uvmalloc.libraries import find_libraries

LOAD = """
import ctypes, sys
for name in ("libc10_cuda.so", "libtorch_cuda.so"):
    ctypes.CDLL(f"{sys.argv[1]}/lib/{name}")
print(ctypes.CDLL(sys.argv[2]).uvmalloc_load_in_torch())
"""


def version_text(version: str, cuda: str | None) -> str:
    return (
        f"from typing import Optional\n__version__ = '{version}'\ndebug = False\n"
        f"cuda: Optional[str] = {cuda!r}\nhip: Optional[str] = None\n"
    )


@pytest.fixture(scope="module")
def torch_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "torch"
    (folder / "lib").mkdir(parents=True)
    source = folder / "empty.c"
    source.touch()
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "no C compiler on the path"
    for name in ("libc10_cuda.so", "libtorch_cuda.so"):
        library = folder / "lib" / name
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return folder


@pytest.mark.parametrize(
    ("cuda", "why"),
    [
        ("12.6", "torch 9.8.0 is built for CUDA 12.6, and uvmalloc needs a torch for CUDA 13"),
        ("1.3", "torch 9.8.0 is built for CUDA 1.3, and uvmalloc needs a torch for CUDA 13"),
        ("13.2", "there is no plugin for torch 9.8.0 ("),
        (None, "there is no plugin for torch 9.8.0 ("),
    ],
)
def test_a_torch_for_another_cuda_keeps_its_allocators(
    torch_folder: Path, cuda: str | None, why: str
) -> None:
    (torch_folder / "version.py").write_text(version_text("9.8.0", cuda))
    library = find_libraries().require_uvmalloc()
    environment = without_settings(os.environ, "CUDA_", "LD_")
    environment |= {"LD_PRELOAD": str(library), "PYTORCH_ENABLE_UNIFIED_MEMORY": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, torch_folder, library],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    assert done.stderr.startswith(f"uvmalloc: {why}")
    assert done.stderr.endswith(": torch keeps its own allocators\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("cuda", "problems"), [("12.8", 1), ("13.0", 0), (None, 0)])
def test_the_doctor_says_it_before_a_program_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cuda: str | None, problems: int
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text(version_text("2.11.0", cuda))
    installed = tmp_path / "torch-2.11.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.11.0\n")
    [torch] = metadata.distributions(path=[str(tmp_path)])
    monkeypatch.setattr(metadata, "distribution", lambda _: torch)
    diagnosis = doctor.diagnose()
    assert diagnosis["torch"]["cuda"] == cuda
    found = [text for text in diagnosis["problems"] if "is built for CUDA" in text]
    said = (
        "torch 2.11.0 is built for CUDA 12.8, and uvmalloc needs a torch for CUDA 13: "
        "install that wheel; without it `uvmalloc run` serves only torch's CUDA allocation calls"
    )
    assert found == [said] * problems
