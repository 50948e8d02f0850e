"""Finds what a build needs and this machine lacks, and builds."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from header_libraries import LIBRARIES

from gpu_check.place import CLI_MODULES, DEPS, ROOT, Place
from gpu_check.subprograms import CheckError, Clock, run


def importable(module: str) -> bool:
    return importlib.util.find_spec(module) is not None or (DEPS / "python" / module).is_dir()


def compiles(include: str) -> bool:
    source = f"#include <{include}>\n"
    command = ["c++", "-std=c++20", "-fsyntax-only", "-x", "c++", "-I", str(DEPS / "include"), "-"]
    return subprocess.run(command, input=source, text=True, capture_output=True).returncode == 0


def torch_folder() -> Path | None:
    found = importlib.util.find_spec("torch")
    return Path(found.origin).parent if found and found.origin else None


def cuda_include_folder() -> Path | None:
    """Returns the folder of cuda.h: CUDA_HOME's, the one installed with torch, or a toolkit's."""
    candidates = []
    if home := os.environ.get("CUDA_HOME"):
        candidates.append(Path(home) / "include")
    if torch := torch_folder():
        candidates.append(torch.parent / "nvidia" / "cu13" / "include")
    if nvcc := shutil.which("nvcc"):
        candidates.append(Path(nvcc).resolve().parent.parent / "include")
    candidates.append(Path("/usr/local/cuda/include"))
    return next((folder for folder in candidates if (folder / "cuda.h").is_file()), None)


def jemalloc_folder() -> Path | None:
    """Returns the jemalloc to build with: UVMALLOC_JEMALLOC_DIR, or the folder carried along."""
    if chosen := os.environ.get("UVMALLOC_JEMALLOC_DIR"):
        return Path(chosen)
    carried = DEPS / "jemalloc"
    return carried if carried.is_dir() else None


def missing() -> list[str]:
    """Returns one line for each thing that the build or a check needs and this machine lacks."""
    carry = "run scripts/gpu_check --prepare where there is network and carry build/gpu_deps along"
    lines = [
        f"{tool} is not on the path"
        for tool in ("c++", "cmake", "ninja")
        if shutil.which(tool) is None
    ]
    if shutil.which("c++") is not None:
        for library in LIBRARIES:
            if not library.only_for_simulator and not compiles(library.header):
                lines.append(f"{library.name}: <{library.header}> is not found; {carry}")
        if not (DEPS / "googletest").is_dir() and not compiles("gtest/gtest.h"):
            lines.append(f"GoogleTest: <gtest/gtest.h> is not found; {carry}")
    lines += [
        f"Python module {module} is not there; {carry}"
        for module in CLI_MODULES
        if not importable(module)
    ]
    if cuda_include_folder() is None:
        lines.append("cuda.h is in no CUDA toolkit and not beside torch; set CUDA_HOME")
    if jemalloc_folder() is None:
        lines.append(
            f"jemalloc: neither build/gpu_deps/jemalloc nor UVMALLOC_JEMALLOC_DIR; {carry}"
        )
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        lines.append("libcuda.so.1 cannot be loaded: no NVIDIA driver")
    return lines


def plugin_target() -> str:
    folder = torch_folder()
    text = (folder / "version.py").read_text(encoding="utf-8") if folder else ""
    found = re.search(r"__version__ = '(\d+)\.(\d+)", text)
    if not found:
        raise CheckError("torch does not say its version")
    return f"uvmalloc_torch_{found[1]}_{found[2]}"


def build(place: Place, clock: Clock) -> None:
    definitions = {
        "CMAKE_BUILD_TYPE": "RelWithDebInfo",
        "CMAKE_PREFIX_PATH": str(DEPS),
        "UVMALLOC_BUILD_SIM": "OFF",
        "UVMALLOC_WERROR": "OFF",  # another compiler has other warnings
        "UVMALLOC_TORCH_DIRS": str(torch_folder()),
        "UVMALLOC_CUDA_INCLUDE_DIR": str(cuda_include_folder()),
    }
    if jemalloc := jemalloc_folder():
        definitions["UVMALLOC_JEMALLOC_DIR"] = str(jemalloc)
    options = [f"-D{name}={value}" for name, value in definitions.items()]
    configure = ["cmake", "-S", str(ROOT), "-B", str(place.build), "-G", "Ninja", *options]
    targets = ["uvmalloc_preload", plugin_target(), "uvmalloc_bench_torch"]
    targets += ["driver_probe", "conformance_test"]
    run(configure, os.environ, clock.left(60), "configuring")
    command = ["cmake", "--build", str(place.build), "--target", *targets]
    run(command, os.environ, clock.left(300), "building")
