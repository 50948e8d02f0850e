"""Every function that CUDA's and HIP's libraries export is intercepted, or a table says why not.
Every form of an intercepted call is intercepted: its versions, and those for a default stream per
thread."""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from uvmalloc.libraries import find_libraries

from tests.build_facts import found_by_cmake
from tests.preload.conftest import ROOT, Program, listed_calls

SUFFIXES = re.compile(r"(R\d{4})?(_v\d+)?(_ptsz|_ptds|_spt)?$")
LIBRARIES = [
    *(("cu", ROOT / "sim" / "cuda" / f"{name}_symbols.txt") for name in ("cuda", "cudart")),
    ("hip", ROOT / "sim" / "hip" / "hip_symbols.txt"),
    ("nvml", ROOT / "sim" / "cuda" / "nvml_symbols.txt"),
]


def exported_by_libraries() -> set[str]:
    return {
        name
        for beginning, file in LIBRARIES
        for name in file.read_text().split()
        if name.startswith((beginning, "__"))
    }


def intercepted() -> set[str]:
    return set(listed_calls())


def left() -> dict[str, str]:
    table = (ROOT / "preload" / "calls.def").read_text()
    return dict(re.findall(r'^NOT_INTERCEPTED\((\w+), "(.*)"\)$', table, re.MULTILINE))


def base_of(name: str) -> str:
    return SUFFIXES.sub("", name)


def forms_left_out(ours: set[str]) -> set[str]:
    bases = {base_of(name) for name in ours}
    return {name for name in exported_by_libraries() - ours if base_of(name) in bases}


def test_every_form_is_intercepted_or_has_a_reason() -> None:
    assert forms_left_out(intercepted()) == set(left())


def test_the_reasons_are_sentences_about_names_that_exist() -> None:
    for name, reason in left().items():
        assert name in exported_by_libraries(), name
        assert len(reason.split()) > 5, name


def test_a_form_that_is_forgotten_is_found() -> None:
    forgotten = {"cudaFreeAsync_ptsz", "cuStreamBeginCapture_v2_ptsz", "hipStreamEndCapture_spt"}
    assert forgotten <= forms_left_out(intercepted() - forgotten)


# A function with such a name may have to be intercepted, so no wildcard covers it.
TAKES_OR_ENDS = re.compile(
    "Alloc|Malloc|Free|Destroy|(?<!Persisting)Reset|Release|Unmap|Unload|Capture|Launch"
)


def other_patterns() -> list[str]:
    table = (ROOT / "preload" / "other_calls.md").read_text()
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    assert all(len(row) == 3 and len(row[2].split()) > 2 for row in rows)
    return [pattern for row in rows for pattern in re.findall("`([^`]+)`", row[1])]


def covers(pattern: str, name: str) -> bool:
    if TAKES_OR_ENDS.search(name):
        return pattern == name
    return fnmatch.fnmatchcase(name, pattern)


def unlisted(ours: set[str]) -> tuple[set[str], set[str]]:
    """Functions that neither calls.def nor other_calls.md has, and patterns without a function."""
    others = {base_of(name) for name in exported_by_libraries() - ours - set(left())}
    patterns = other_patterns()
    return (
        {name for name in others if not any(covers(each, name) for each in patterns)},
        {each for each in patterns if not any(covers(each, name) for name in others)},
    )


def test_every_exported_function_is_intercepted_or_a_table_says_why_not() -> None:
    assert unlisted(intercepted()) == (set(), set())


def test_a_function_that_ends_something_needs_a_row_of_its_own() -> None:
    forgotten = {"cudaExecutionCtxDestroy", "cuGreenCtxDestroy", "hipStreamDestroy"}
    assert unlisted(intercepted() - forgotten)[0] == forgotten


DRIVER_BY_NAME = r"""
#include <stdio.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#undef cuMemAlloc
#undef cuMemFree
typedef CUresult allocate(CUdeviceptr*, size_t);
typedef CUresult release(CUdeviceptr);
int main(void) {
  enum cudaDriverEntryPointQueryResult found;
  void *get = 0, *put = 0;
  CUdeviceptr first = 0, second = 0;
  if (cudaFree(0) != cudaSuccess) return 2;
  if (FOUND("cuMemAlloc", &get) || FOUND("cuMemFree", &put)) return 3;
  if (((allocate*)get)(&first, 3 << 20) || ((allocate*)get)(&second, 3 << 20)) return 4;
  if (((release*)put)(first)) return 5;
  /* A span of the driver holds both: its own cuMemFree would take both. */
  char text[4] = "abc";
  if (cudaMemcpy((void*)second, text, 4, cudaMemcpyHostToDevice)) return 6;
  return ((release*)put)(second) != CUDA_SUCCESS;
}
"""


@pytest.mark.parametrize("default_stream", ["", "_ptsz"])
@pytest.mark.parametrize("by_version", ["", "ByVersion"])
def test_a_function_of_the_driver_found_by_the_runtime_is_ours(
    program: Program, tmp_path: Path, default_stream: str, by_version: str
) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "no C compiler on the path"
    version = "12000, " if by_version else ""
    name = f"cudaGetDriverEntryPoint{by_version}{default_stream}"
    # The newest header does not declare the form without a version.
    declared = f"cudaError_t found_by(const char*, void**, {'unsigned, ' if by_version else ''}"
    declared += f'unsigned long long, void*) __asm__("{name}");\n'
    found = f"#define FOUND(n, o) found_by(n, o, {version}0, &found)\n"
    source = tmp_path / "by_name.c"
    head, tail = DRIVER_BY_NAME.split("typedef", 1)
    source.write_text(head + declared + found + "typedef" + tail)
    stand_ins = find_libraries().stand_ins
    folder = found_by_cmake("UVMALLOC_CUDA_INCLUDE_DIR")
    command = [compiler, "-isystem", folder, "-o", tmp_path / "by_name", source]
    subprocess.run([*command, stand_ins / "libcudart.so.13"], check=True)
    run = program(tmp_path / "by_name")
    assert (run.served, run.reached) == (2, 0)
