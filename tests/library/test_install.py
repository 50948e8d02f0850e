"""Programs of users, built only from the installed tree, and run on the simulated device."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from uvmalloc._cli.accepted import DRIVER_VERSIONS
from uvmalloc.libraries import find_libraries

from tests.build_facts import found_by_cmake
from tests.conftest import MakeOnce

from .conftest import ROOT, Installed, run

pytestmark = pytest.mark.slow

CONSUMER = Path(__file__).parent / "consumer"
C_OUTPUT = "0.2.0 moved=16777216 prefetched=1\n"
CPP_OUTPUT = "0.2.0 caught=out of memory moved=4194304 place=device:0 allocations=1\n"
CUDA_OUTPUT = "again=1 place=device:0\n"
KERNEL_OUTPUT = "container=7 c=15 cccl=15 managed=1\n"
RUNTIME_OUTPUT = "first=6 last=5 managed=1 again=1\n"
NVCC = shutil.which("nvcc", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")
# This header needs libcu++ on the include path; cuda_program.cpp compiles it.
WITH_OTHERS = "uvmalloc/cuda_memory_resource.hpp"
# Includes paths of stand-ins: a program may find a stand-in through a link in a subfolder.
_RELATIVE_PATHS = {"$ORIGIN]", "$ORIGIN/..]", "$ORIGIN:$ORIGIN/..:$ORIGIN/../..]"}


def cuda_include_dirs() -> list[str]:
    """Returns the folders of libcu++ and of CUDA's headers in this build; none without libcu++."""
    names = ("UVMALLOC_CCCL_INCLUDE_DIR", "UVMALLOC_CUDA_INCLUDE_DIR")
    folders = [found_by_cmake(name) for name in names]
    return folders if Path(folders[0], "cuda/memory_resource").is_file() else []


@pytest.fixture(scope="session")
def consumer(installed: Installed, make_once: MakeOnce) -> Path:
    """Builds a copy of the CMake project outside the source tree and returns its build folder."""
    headers = sorted(
        str(header.relative_to(installed.headers))
        for header in installed.headers.rglob("*.h*")
        if str(header.relative_to(installed.headers)) != WITH_OTHERS
    )

    def build(folder: Path) -> None:
        shutil.copytree(CONSUMER, folder / "source")
        run(
            *("cmake", "-G", "Ninja", "-S", folder / "source", "-B", folder / "build"),
            *(f"-DCMAKE_PREFIX_PATH={installed.prefix}", f"-DUVMALLOC_HEADERS={';'.join(headers)}"),
            f"-DCUDA_INCLUDE_DIRS={';'.join(cuda_include_dirs())}",
            f"-DCUDART_INCLUDE_DIR={found_by_cmake('UVMALLOC_CUDA_INCLUDE_DIR')}",
            f"-DCUDART_LIBRARY={installed.stand_ins}/libcudart.so.13",
            *([f"-DCMAKE_CUDA_COMPILER={NVCC}"] if NVCC else []),
            "-DCMAKE_DISABLE_FIND_PACKAGE_Boost=ON",
        )
        run("cmake", "--build", folder / "build", "-j2")

    return make_once("consumer", build) / "build"


def test_every_header_compiles_by_itself(consumer: Path, installed: Installed) -> None:
    objects = list(consumer.rglob("headers/*.o"))
    headers = list(installed.headers.rglob("*.h*"))
    assert len(objects) == len(headers) - 1


@pytest.mark.parametrize("linked", ["static", "shared"])
def test_a_cpp_program_by_find_package(linked: str, consumer: Path, installed: Installed) -> None:
    program = consumer / f"program_{linked}"
    assert installed.run_simulated(program, shared=linked == "shared") == CPP_OUTPUT


def test_a_c_program_by_find_package(consumer: Path, installed: Installed) -> None:
    assert installed.run_simulated(consumer / "c_program_shared", shared=True) == C_OUTPUT


def test_a_program_with_libcudacxx(consumer: Path, installed: Installed) -> None:
    if not cuda_include_dirs():
        pytest.skip("no libcu++ was found when this build was configured")
    assert installed.run_simulated(consumer / "cuda_program", shared=False) == CUDA_OUTPUT


def test_a_c_program_with_cudas_runtime(consumer: Path, installed: Installed) -> None:
    assert installed.run_simulated(consumer / "runtime_program", shared=False) == RUNTIME_OUTPUT


def test_a_program_that_nvcc_has_built(consumer: Path, installed: Installed) -> None:
    if NVCC is None:
        pytest.skip("no nvcc: a CUDA toolkit has it")
    kernels = find_libraries().folder / "tests" / "libcpu_kernels.so"
    output = run(
        consumer / "kernel_program",
        LD_LIBRARY_PATH=str(installed.stand_ins),
        UVMSIM_KERNELS=str(kernels),
    )
    assert output == KERNEL_OUTPUT


def test_the_consumer_names_neither_source_nor_build_folder(consumer: Path) -> None:
    assert str(ROOT) not in (consumer / "build.ninja").read_text()


@pytest.mark.parametrize(("library", "shared"), [("uvmalloc", True), ("uvmalloc_static", False)])
def test_a_project_in_c_alone_needs_no_boost(
    library: str, shared: bool, installed: Installed, tmp_path: Path
) -> None:
    shutil.copy(CONSUMER / "program.c", tmp_path)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\n"
        "project(c_alone LANGUAGES C)\n"
        "set(CMAKE_DISABLE_FIND_PACKAGE_Boost ON)\n"
        "find_package(uvmalloc REQUIRED)\n"
        "add_executable(program program.c)\n"
        f"target_link_libraries(program PRIVATE uvmalloc::{library})\n"
    )
    build = tmp_path / "build"
    found = f"-DCMAKE_PREFIX_PATH={installed.prefix}"
    run("cmake", "-G", "Ninja", "-S", tmp_path, "-B", build, found)
    run("cmake", "--build", build)
    assert installed.run_simulated(build / "program", shared=shared) == C_OUTPUT


@pytest.mark.parametrize(("package", "shared"), [("uvmalloc", True), ("uvmalloc-static", False)])
def test_a_c_program_by_pkg_config(
    package: str, shared: bool, installed: Installed, tmp_path: Path
) -> None:
    flags = installed.pkg_config("--cflags", "--libs", package)
    program = tmp_path / "program"
    run(
        *("cc", "-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror"),
        *(CONSUMER / "program.c", "-o", program, *flags),
    )
    assert installed.run_simulated(program, shared=shared) == C_OUTPUT


@pytest.mark.parametrize(("package", "shared"), [("uvmalloc", True), ("uvmalloc-static", False)])
def test_a_path_with_a_blank_is_no_matter_to_pkg_config(
    package: str, shared: bool, installed: Installed, tmp_path: Path
) -> None:
    moved = Installed(tmp_path / "moved there")
    shutil.copytree(installed.prefix, moved.prefix, symlinks=True)
    program = tmp_path / "program"
    flags = moved.pkg_config("--cflags", "--libs", package)
    run("cc", CONSUMER / "program.c", "-o", program, *flags)
    assert moved.run_simulated(program, shared=shared) == C_OUTPUT


def test_a_program_without_shared_libraries_links_by_pkg_config(
    installed: Installed, tmp_path: Path
) -> None:
    flags = installed.pkg_config("--cflags", "--libs", "uvmalloc-static")
    program = tmp_path / "program"
    run("cc", "-static", CONSUMER / "program.c", "-o", program, *flags)
    assert "(NEEDED)" not in run("readelf", "-d", program)


def test_a_program_that_links_it_and_preloads_it_has_one(
    consumer: Path, installed: Installed
) -> None:
    preload = str(installed.libraries / "libuvmalloc_preload.so")
    loaded = run(
        consumer / "c_program_shared",
        LD_PRELOAD=preload,
        LD_LIBRARY_PATH=str(installed.libraries),
        LD_TRACE_LOADED_OBJECTS="1",
    )
    libraries = [line.split()[0] for line in loaded.splitlines() if "uvmalloc" in line]
    assert libraries == [preload, "libuvmalloc.so.0.2"], "calls find the first"


def test_pkg_config_knows_the_version_and_what_the_archive_needs(installed: Installed) -> None:
    assert installed.pkg_config("--modversion", "uvmalloc") == ["0.2.0"]
    assert "-lstdc++" in installed.pkg_config("--libs", "--static", "uvmalloc")
    assert "-lstdc++" not in installed.pkg_config("--libs", "uvmalloc")


def test_another_minor_version_is_refused(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\n"
        "project(other LANGUAGES C)\n"
        "find_package(uvmalloc 0.1 QUIET)\n"
        'message(STATUS "found=${uvmalloc_FOUND}")\n'
    )
    found = f"-DCMAKE_PREFIX_PATH={installed.prefix}"
    said = run("cmake", "-S", tmp_path, "-B", tmp_path / "build", found)
    assert "found=0" in said


def test_the_tree_names_no_folder_of_its_making(installed: Installed) -> None:
    texts = [
        path
        for path in installed.prefix.rglob("*")
        if path.suffix in {".cmake", ".pc", ".h", ".hpp"}
    ]
    assert len(texts) > 15
    for text in texts:
        for folder in (str(ROOT), str(installed.prefix.parent)):
            assert folder not in text.read_text(), text
    for library in installed.prefix.rglob("*.so*"):
        paths = [line for line in run("readelf", "-d", library).splitlines() if "PATH)" in line]
        assert {line.split("[")[1] for line in paths} <= _RELATIVE_PATHS, library


def test_stand_ins_lie_where_no_program_finds_them_by_chance(installed: Installed) -> None:
    files = [file for file in installed.stand_ins.rglob("*.so*") if file.is_file()]
    names = {str(file.relative_to(installed.stand_ins)) for file in files if not file.is_symlink()}
    assert names == {
        *(
            "libuvmsim.so",
            "libuvmsim_audit.so",
            "libuvmsim_host.so",
            "libcuda.so.1",
            "libcudart.so.13",
        ),
        *("libcupti.so.13", "libnvidia-ml.so.1"),
        *(f"{version}/libcuda.so.1" for version in DRIVER_VERSIONS[:-1]),
        *(f"hip/libamdhip64.so.{major}" for major in (5, 6, 7)),
        "hip/libhsa-runtime64.so.1",
    }
    assert list(installed.libraries.glob("libcuda*")) == []


def test_the_folder_of_headers_is_installed_and_nothing_else(installed: Installed) -> None:
    def headers(folder: Path) -> set[str]:
        return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}

    assert headers(installed.headers) == headers(ROOT / "include")


def test_no_library_has_debug_information(installed: Installed) -> None:
    libraries = [
        file
        for file in installed.prefix.rglob("lib*")
        if file.is_file() and not file.is_symlink() and re.search(r"\.(a|so)(\.|$)", file.name)
    ]
    assert len(libraries) == 19, "two static, three shared, fourteen of the simulated device"
    for library in libraries:
        assert ".debug_info" not in run("readelf", "-S", "--wide", library), library


def files_below(folder: Path) -> set[Path]:
    return {file.relative_to(folder) for file in folder.rglob("*") if file.is_file()}


def test_licences_and_documents_are_installed(installed: Installed) -> None:
    documents = installed.prefix / "share/doc/uvmalloc"
    assert (documents / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    notices = (documents / "THIRD_PARTY_NOTICES").read_text()
    for notice in ("Jason Evans", "Victor Zverovich", "Niels Lohmann"):
        assert notice in notices
    assert (documents / "README.md").is_file()
    assert files_below(documents / "docs") == {
        file for file in files_below(ROOT / "docs") if file.suffix in (".md", ".png", ".svg")
    }


def test_links_of_installed_documents_lead_to_installed_files(installed: Installed) -> None:
    documents = installed.prefix / "share/doc/uvmalloc"
    missing = [
        f"{page.relative_to(documents)}: {link}"
        for page in documents.rglob("*.md")
        for link in re.findall(r"\]\(([^)\s#]+)[^)]*\)", page.read_text())
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert missing == []


def test_the_installed_simulator_has_the_machines(installed: Installed) -> None:
    profiles = {file.name for file in (ROOT / "sim/profiles").glob("*.toml")}
    assert files_below(installed.stand_ins / "profiles") == {Path(name) for name in profiles}
    text = """
import ctypes
driver, name = ctypes.CDLL("libcuda.so.1"), ctypes.create_string_buffer(100)
assert driver.cuInit(0) == 0
assert driver.cuDeviceGetName(name, 100, 0) == 0
print(name.value.decode())
"""
    found = {"LD_LIBRARY_PATH": str(installed.stand_ins)}
    assert run(sys.executable, "-c", text, UVMSIM_MACHINE="gb10", **found) == "NVIDIA GB10\n"
    failed = subprocess.run(
        [sys.executable, "-c", text], env={**os.environ, **found, "UVMSIM_MACHINE": "none"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert f"{installed.stand_ins}/profiles/none.toml: File could not be opened" in failed.stderr


def test_the_documented_versions_of_the_systems_libraries_are_those_needed(
    installed: Installed,
) -> None:
    symbols = run("objdump", "-T", installed.libraries / "libuvmalloc.so")

    def newest(library: str) -> str:
        versions = re.findall(rf"\(?{library}_([0-9.]+)\)?", symbols)
        return max(versions, key=lambda text: [int(part) for part in text.split(".")])

    said = (ROOT / "docs/reference/library.md").read_text()
    assert f"glibc {newest('GLIBC')} and" in said
    assert f"GLIBCXX_{newest('GLIBCXX')}" in said
