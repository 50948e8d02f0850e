"""Programs that call uvmalloc's functions before CUDA's runtime is loaded, and programs that are
linked to uvmalloc and to the runtime."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from uvmalloc.libraries import find_libraries

from tests.preload.conftest import Program

WEAK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
typedef int allocate(void**, unsigned long);
typedef int count(int*);
__attribute__((weak)) allocate cudaMalloc;
int main(void) {
  int devices = -1;
  void* block = 0;
  printf("%s", dlsym(RTLD_DEFAULT, "cudaGetDeviceCount") ? "there" : "absent");
  printf(dlerror() != NULL ? " with a reason\n" : "\n");
  if (cudaMalloc) printf("early %d\n", cudaMalloc(&block, 1 << 20));
  if (dlopen("libcudart.so.13", RTLD_NOW | RTLD_GLOBAL) == NULL) return 1;
  allocate* late = (allocate*)dlsym(RTLD_DEFAULT, "cudaMalloc");
  count* ask = (count*)dlsym(RTLD_DEFAULT, "cudaGetDeviceCount");
  printf("late %d, ", late(&block, 1 << 20));
  printf("%d", ask(&devices));
  printf(" %d\n", devices);
  return 0;
}
"""
LINKED = r"""
#include <stdio.h>
const char* uvmalloc_version(void);
int cudaMalloc(void**, unsigned long);
int cudaFree(void*);
int main(void) {
  void* block = 0;
  const int allocated = cudaMalloc(&block, 1 << 20);
  printf("%d %d %d\n", uvmalloc_version() != 0, allocated, cudaFree(block));
  return 0;
}
"""


def built(folder: Path, text: str, *options: str | Path) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "no C compiler on the path"
    source, program = folder / "program.c", folder / "program"
    source.write_text(text)
    subprocess.run([compiler, "-o", program, source, *options], check=True)
    return program


@pytest.mark.parametrize("switch", ["1", "0"])
def test_a_runtime_that_comes_late_is_found(program: Program, tmp_path: Path, switch: str) -> None:
    run = program(built(tmp_path, WEAK, "-ldl"), UVMALLOC_CUDA=switch)
    assert run.stdout == "absent with a reason\nearly 3\nlate 0, 0 1\n"
    assert (run.served, run.reached) == ((1, 0) if switch == "1" else (0, 1))


def test_linking_takes_nothing_from_cuda(program: Program, tmp_path: Path) -> None:
    """Neither the linker's --as-needed drops CUDA's runtime, nor is its cudaMalloc replaced."""
    libraries = find_libraries()
    paths = [f"-L{libraries.folder}", f"-L{libraries.stand_ins}"]
    names = ["-Wl,--as-needed", "-luvmalloc", "-lcudart", f"-Wl,-rpath,{libraries.folder}"]
    linked = built(tmp_path, LINKED, *paths, *names)
    needed = subprocess.run(["readelf", "-d", linked], capture_output=True, text=True, check=True)
    assert "libcudart" in needed.stdout
    run = program(linked, LD_PRELOAD="")
    assert run.stdout == "1 0 0\n"
    assert (run.served, run.reached) == (0, 1)


def test_a_linked_program_uses_the_preloaded_allocator(program: Program, tmp_path: Path) -> None:
    """The interface's calls find the preloaded library first, whatever version they ask for."""
    libraries = find_libraries()
    text = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
const char* uvmalloc_version(void);
int cudaGetDeviceCount(int*);
int main(void) {
  int count = 0;
  Dl_info found;
  if (cudaGetDeviceCount(&count) != 0) return 1;
  if (dladdr((void*)uvmalloc_version, &found) == 0) return 1;
  printf("%s %s\\n", strrchr(found.dli_fname, '/') + 1, uvmalloc_version());
  return 0;
}
"""
    paths = [f"-L{libraries.folder}", f"-L{libraries.stand_ins}"]
    names = ["-luvmalloc", "-lcudart", f"-Wl,-rpath,{libraries.folder}"]
    linked = built(tmp_path, text, *paths, *names)
    library, version = program(linked).stdout.split()
    assert library == "libuvmalloc_preload.so"
    alone = program(linked, LD_PRELOAD="").stdout.split()
    assert alone == [f"libuvmalloc.so.{version[:3]}", version]


def test_a_preloaded_library_opens_no_runtime(program: Program, tmp_path: Path) -> None:
    text = WEAK.replace('dlopen("libcudart.so.13", RTLD_NOW | RTLD_GLOBAL) == NULL', "1")
    with pytest.raises(AssertionError, match="early 3"):
        program(built(tmp_path, text, "-ldl"))


def test_the_look_ups_have_call_frame_information() -> None:
    """Otherwise a profiler or debugger that stops below a look-up loses the program's frames."""
    library = find_libraries().require_uvmalloc()
    symbols = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True)
    frames = subprocess.run(["readelf", "-wF", library], capture_output=True, text=True, check=True)
    ranges = [
        (int(begin, 16), int(end, 16))
        for begin, end in re.findall(r"FDE .*pc=([0-9a-f]+)\.\.([0-9a-f]+)", frames.stdout)
    ]
    for name in ("dlsym", "dlvsym"):
        found = re.search(rf"^([0-9a-f]+) T {name}$", symbols.stdout, re.MULTILINE)
        assert found is not None
        address = int(found[1], 16)
        assert [1 for begin, end in ranges if begin <= address < end] == [1], name
