"""PyTorch's own hipify translates the plugin into valid code for PyTorch on ROCm.

No wheel for ROCm is needed: the headers of the wheel for CUDA are translated in the same way.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from uvmalloc.libraries import find_libraries

from tests.hipify.test_translation import ROOT, header_folders

# Names of CUDA's runtime and driver that the translation must not leave in code.
CALL = re.compile(r"\b(?:cuda[A-Z]|cu[A-Z][a-z]+[A-Z])\w*\s*\(")
COMMENT = re.compile(r"//[^\n]*|\"[^\"\n]*\"")
# Headers that torch's headers include by CUDA's names.
TOOLKIT = ("cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "driver_types.h")


def torch_include() -> Path:
    found = importlib.util.find_spec("torch")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent / "include"


def translate(folder: Path) -> None:
    """Puts the translated plugin below `folder`, with the translated headers that it needs."""
    shutil.copytree(
        ROOT / "pytorch", folder / "pytorch", ignore=shutil.ignore_patterns("python", "*.txt")
    )
    families = ("c10", "ATen")
    for family in families:
        shutil.copytree(torch_include() / family / "cuda", folder / family / "cuda")
    program = """
import sys
from torch.utils.hipify.hipify_python import hipify
hipify(project_directory=sys.argv[1], output_directory=sys.argv[1], includes=[sys.argv[1] + "/*"],
       is_pytorch_extension=True)
"""
    subprocess.run(
        [sys.executable, "-c", program, folder], check=True, capture_output=True, text=True
    )
    # hipify does not change includes of uvmalloc's own files.
    for renamed in folder.glob("pytorch/**/*_hip.*"):
        renamed.rename(renamed.with_name(renamed.name.replace("_hip.", ".")))
    # A header that includes the original gets the translation: both would define everything twice.
    for family in families:
        for header in (folder / family / "cuda").rglob("*.h"):
            relative = header.relative_to(folder / family / "cuda")
            for name in (str(relative).replace("CUDA", "HIP"), str(relative)):
                if (folder / family / "hip" / name).is_file():
                    header.write_text(f"#pragma once\n#include <{family}/hip/{name}>\n")
                    break
    (folder / "toolkit").mkdir()
    for name in TOOLKIT:
        (folder / "toolkit" / name).write_text("#pragma once\n#include <hip/hip_runtime_api.h>\n")


def sources(folder: Path) -> list[Path]:
    return sorted((folder / "pytorch").glob("plugin/*.cpp")) + sorted(
        (folder / "pytorch").glob("interpose/*.cpp")
    )


@pytest.mark.slow
@pytest.mark.all
def test_the_plugin_is_valid_code_for_pytorch_on_rocm(tmp_path: Path) -> None:
    translate(tmp_path)
    left = [
        f"{source.name}: {call}"
        for source in sources(tmp_path)
        for call in CALL.findall(COMMENT.sub("", source.read_text()))
    ]
    assert left == []
    # One unit, so that torch's headers are read once.
    unit = tmp_path / "plugin.cpp"
    unit.write_text("".join(f'#include "{source}"\n' for source in sources(tmp_path)))
    hip_headers = next(header_folders())
    generated = find_libraries().folder.parent / "pytorch" / "interpose"
    ours = [tmp_path, ROOT / "include", ROOT, generated]
    theirs = [
        tmp_path / "toolkit",
        hip_headers,
        torch_include(),
        torch_include() / "torch" / "csrc" / "api" / "include",
        Path(sysconfig.get_path("include")),
    ]
    done = subprocess.run(
        [
            *("g++", "-std=c++20", "-fsyntax-only", "-DUSE_ROCM", "-D__HIP_PLATFORM_AMD__"),
            "-DTORCH_HIP_VERSION=701",  # as torch's build defines it
            *(f"-I{folder}" for folder in ours),
            *(part for folder in theirs for part in ("-isystem", folder)),
            unit,
        ],
        capture_output=True,
        text=True,
    )
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    assert done.returncode == 0, "\n".join(errors)
