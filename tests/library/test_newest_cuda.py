"""The libcu++ adapter compiles with the oldest and the newest libcu++, and RMM's adaptors use it.
The C++ tests run it with the newest."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest

from .conftest import ROOT, Installed, run


def folder_of(name: str) -> Path:
    return Path((ROOT / "build" / name).read_text().strip())


def compile_only(source: Path, *includes: Path) -> None:
    """Compiles a program against uvmalloc's headers and those of other packages."""
    system = [word for folder in includes for word in ("-isystem", str(folder))]
    command = ["g++", "-std=c++20", "-fsyntax-only", "-Wall", "-Werror", f"-I{ROOT / 'include'}"]
    done = subprocess.run([*command, *system, str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


CUDA = "nvidia/cu13/include"


@pytest.mark.parametrize("package", ["oldest-cccl", "newest-cuda"])
def test_the_adapter_is_a_resource_of_libcudacxx(package: str, tmp_path: Path) -> None:
    program = tmp_path / "program.cpp"
    program.write_text(
        "#include <uvmalloc/cuda_memory_resource.hpp>\n"
        "#if CCCL_VERSION < 3001000\n"
        "static_assert(cuda::mr::async_resource_with<uvm::CudaMemoryResource,\n"
        "                                            cuda::mr::device_accessible>);\n"
        "#else\n"
        "static_assert(cuda::mr::resource_with<uvm::CudaMemoryResource,\n"
        "                                      cuda::mr::device_accessible>);\n"
        "cuda::mr::any_resource<cuda::mr::device_accessible>\n"
        "erased(uvm::CachingManagedAllocator& allocator) {\n"
        "  return uvm::CudaMemoryResource(allocator);\n"
        "}\n"
        "#endif\n"
    )
    text = program.read_text()
    program.write_text("#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE\n" + text)
    cccl = folder_of(package) / CUDA / "cccl"
    compile_only(program, cccl, folder_of("newest-cuda") / CUDA)


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the simulator replaces the runtime only on x86-64"
)
def test_rmms_adaptors_use_it_as_their_upstream(installed: Installed, tmp_path: Path) -> None:
    """RMM's library contains CUDA's static runtime and is stripped. The program contains it too, as
    nvcc links it by default. The simulator replaces both."""
    newest = folder_of("newest-cuda")
    rmm, logger, cuda = newest / "librmm", newest / "rapids_logger", newest / CUDA
    headers = (rmm / "include", rmm / "include/rapids", logger / "include", cuda, cuda / "cccl")
    folders = (installed.libraries, rmm / "lib64", logger / "lib64")
    run(
        *("g++", "-std=c++20", "-Wall", "-Werror", f"-I{installed.headers}"),
        *(word for folder in headers for word in ("-isystem", folder)),
        *(ROOT / "tests" / "library" / "rmm_program.cpp", "-o", tmp_path / "program"),
        *(f"-L{folder}" for folder in folders),
        *("-luvmalloc", "-lrmm", "-lrapids_logger"),
        newest / "nvidia/cu13/lib/libcudart_static.a",
        *("-ldl", "-lpthread", "-lrt"),
    )
    environment = {
        "LD_LIBRARY_PATH": ":".join(map(str, folders)),
        "LD_AUDIT": str(installed.stand_ins / "libuvmsim_audit.so"),
    }
    assert run(tmp_path / "program", **environment) == "right\n"
