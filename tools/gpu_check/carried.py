"""Gathers, in one folder, things that a GPU machine without network may lack.

The folder holds header-only libraries, and the sources of GoogleTest with a CMake package
description made here; the build finds both with CMAKE_PREFIX_PATH. The folder also holds the Python
packages of the command line, this checkout's built jemalloc, and all licences.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from header_libraries import LIBRARIES, MissingSourceError, copy_headers, copy_licence

MOST_BYTES = 40 << 20

GTEST_PACKAGE = """\
# Written by scripts/gpu_check --prepare: GoogleTest from source.
if(NOT TARGET GTest::gtest_main)
  set(folder "${CMAKE_CURRENT_LIST_DIR}/../../../googletest")
  find_package(Threads REQUIRED)
  add_library(carried_gtest STATIC "${folder}/src/gtest-all.cc" "${folder}/src/gtest_main.cc")
  target_include_directories(carried_gtest SYSTEM PUBLIC "${folder}/include" PRIVATE "${folder}")
  target_link_libraries(carried_gtest PUBLIC Threads::Threads)
  add_library(GTest::gtest ALIAS carried_gtest)
  add_library(GTest::gtest_main ALIAS carried_gtest)
endif()
"""


def prepare(root: Path, deps: Path) -> None:
    """Replaces the contents of `deps`, and prints their size."""
    building = deps.with_name(deps.name + ".tmp")
    shutil.rmtree(building, ignore_errors=True)
    gather_system_sources(building)
    _install_python_packages(root, building / "python")
    _copy_jemalloc(root, building)
    size_bytes = sum(file.stat().st_size for file in building.rglob("*") if file.is_file())
    if size_bytes > MOST_BYTES:
        raise MissingSourceError(
            f"{building} holds {size_bytes >> 20} MiB, which is more than {MOST_BYTES >> 20}"
        )
    shutil.rmtree(deps, ignore_errors=True)
    building.rename(deps)
    print(f"gpu_check: {deps.relative_to(root)}: {size_bytes / (1 << 20):.1f} MiB; carry it along")


def gather_system_sources(building: Path) -> None:
    """Copies files of this machine's Debian packages into a folder, which must not exist yet."""
    building.mkdir(parents=True)
    copy_headers(building, [each for each in LIBRARIES if not each.only_for_simulator])
    _copy_googletest(building)
    copy_licence("googletest", building)


def _copy(source: Path, destination: Path) -> None:
    shutil.copytree(source, destination, ignore=shutil.ignore_patterns("__pycache__"))


def _copy_googletest(building: Path) -> None:
    source = Path("/usr/src/googletest/googletest")
    if not source.is_dir():
        raise MissingSourceError(f"{source} is not there: install libgtest-dev and googletest")
    for part in ("include", "src"):
        _copy(source / part, building / "googletest" / part)
    folder = building / "lib" / "cmake" / "GTest"
    folder.mkdir(parents=True)
    (folder / "GTestConfig.cmake").write_text(GTEST_PACKAGE, encoding="utf-8")


def _install_python_packages(root: Path, folder: Path) -> None:
    lines = (root / "scripts" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    wanted = [line for line in lines if re.match(r"(typer|rich)==", line)]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-compile", "--only-binary=:all:", "--target", str(folder), *wanted]
    if subprocess.run(command).returncode != 0:
        raise MissingSourceError("pip could not install typer and rich")


def _copy_jemalloc(root: Path, building: Path) -> None:
    """Copies the build's jemalloc. scripts/setup has written its folder into build/jemalloc."""
    pointer = root / "build" / "jemalloc"
    if not pointer.is_file():
        raise MissingSourceError("build/jemalloc is not there: run scripts/setup first")
    _copy(Path(pointer.read_text(encoding="utf-8").strip()), building / "jemalloc")
