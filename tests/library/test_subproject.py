"""uvmalloc as a part of another CMake project: add_subdirectory and FetchContent."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.library.conftest import run

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
#include <stdio.h>
#include <uvmalloc/uvmalloc.h>
int main(void) {
  uvmalloc_options options = {.struct_bytes = sizeof options, .runtime = "no-such-runtime"};
  uvmalloc_allocator* allocator;
  printf("%s %d\\n", uvmalloc_version(), uvmalloc_create(&options, &allocator) == UVMALLOC_OK);
  return puts(uvmalloc_last_error()), 0;
}
"""
WAYS = {
    "add_subdirectory": f"add_subdirectory({ROOT} uvmalloc)",
    "FetchContent": f"""
include(FetchContent)
FetchContent_Declare(uvmalloc SOURCE_DIR {ROOT})
FetchContent_MakeAvailable(uvmalloc)""",
}


def project(folder: Path, way: str, *options: str) -> Path:
    """Configures a program that is linked to both libraries, and returns its build folder."""
    (folder / "program.c").write_text(PROGRAM)
    (folder / "CMakeLists.txt").write_text(f"""
cmake_minimum_required(VERSION 3.25)
project(other LANGUAGES C CXX)
{WAYS[way]}
foreach(library uvmalloc uvmalloc_static)
  add_executable(with_${{library}} program.c)
  target_link_libraries(with_${{library}} PRIVATE uvmalloc::${{library}})
endforeach()
""")
    jemalloc = (ROOT / "build" / "jemalloc").read_text().strip()
    site = (ROOT / "build" / "venv" / "site-packages").read_text().strip()
    settings = {
        "UVMALLOC_JEMALLOC_DIR": jemalloc,
        "UVMALLOC_CUDA_INCLUDE_DIR": f"{site}/nvidia/cu13/include",
        "UVMALLOC_HIP_INCLUDE_DIR": f"{site}/triton/backends/amd/include",
    }
    given = [f"-D{name}={value}" for name, value in settings.items()]
    run("cmake", "-G", "Ninja", "-S", folder, "-B", folder / "build", *given, *options)
    return folder / "build"


@pytest.mark.parametrize("way", WAYS)
def test_only_the_libraries_are_built(tmp_path: Path, way: str) -> None:
    build = project(tmp_path, way)
    targets = run("ninja", "-C", build, "-t", "targets", "all")
    assert "libuvmalloc.so" in targets and "with_uvmalloc" in targets
    assert not [word for word in ("_test:", "libcuda.so.1:", "bench_engine") if word in targets]
    commands = (build / "compile_commands.json").read_text()
    assert "-Werror" not in commands and "ccache" not in commands


@pytest.mark.all
@pytest.mark.parametrize("cuda", ["ON", "OFF"])
def test_a_program_runs(tmp_path: Path, cuda: str) -> None:
    """Without CUDA's headers there are the runtime of HIP and those of others."""
    if cuda == "OFF":
        build = project(
            tmp_path, "FetchContent", "-DUVMALLOC_CUDA=OFF", "-DUVMALLOC_CUDA_INCLUDE_DIR="
        )
    else:
        build = project(tmp_path, "add_subdirectory")
    targets = ["with_uvmalloc", "with_uvmalloc_static"]
    subprocess.run(["cmake", "--build", build, "--target", *targets], check=True)
    for name in ("with_uvmalloc", "with_uvmalloc_static"):
        version, reason = run(next(build.rglob(name))).splitlines()
        assert version == "0.2.0 0"
        kinds = "auto, cuda, hip" if cuda == "ON" else "auto, hip"
        assert f"accepted: {kinds}" in reason
