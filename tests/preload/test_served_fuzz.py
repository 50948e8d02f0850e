"""Random programs of CUDA, with and without uvmalloc (served_fuzz.py).

`python -m tests.preload.served_fuzz --seconds 600` searches longer.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from uvmalloc.libraries import find_libraries

from tests.preload.served_fuzz import KINDS, SEQUENCES, Fuzzer, built

# Numbers of programs, for each kind.
PROGRAMS = [range(5), pytest.param(range(5, 14), marks=pytest.mark.all)]

# This library comes before uvmalloc, and every free in it succeeds.
PLANTED = """
int cudaFree(void*);
#define _GNU_SOURCE
#include <dlfcn.h>
int cudaFree(void* address) {
  static int (*next)(void*);
  if (next == 0) *(void**)&next = dlsym((void*)-1L, "cudaFree");
  next(address);
  return 0;
}
"""


@pytest.fixture(scope="module", params=sorted(KINDS))
def fuzzer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Fuzzer:
    return built(request.param, tmp_path_factory.mktemp("served_fuzz"))


@pytest.mark.slow
@pytest.mark.parametrize("numbers", PROGRAMS, ids=["first", "rest"])
def test_served_programs_print_what_they_print_without_us(fuzzer: Fuzzer, numbers: range) -> None:
    for number in numbers:
        difference = fuzzer.difference(1 + number * SEQUENCES)
        assert difference == "", difference


def test_a_planted_fault_is_found(tmp_path: Path) -> None:
    fuzzer = built("legacy", tmp_path)
    source, library = tmp_path / "planted.c", tmp_path / "libplanted.so"
    source.write_text(PLANTED)
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "no C compiler on the path"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    preloads = f"{library} {find_libraries().require_uvmalloc()}"
    assert "served: " in fuzzer.difference(1, LD_PRELOAD=preloads)
