"""uvmalloc beside other libraries that intercept calls, and in programs that end oddly."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from uvmalloc._cli.environment import Machine, on_simulated_device, without_settings
from uvmalloc._cli.report import main_report
from uvmalloc.libraries import find_libraries

from tests.build_facts import found_by_cmake

PROGRAM = """
#include <cuda_runtime_api.h>
#include <stdio.h>
int main(void) {
  for (int i = 0; i < 5; ++i) {
    void* block = 0;
    if (cudaMalloc(&block, 3 << 20) != 0 || cudaFree(block) != 0) return 1;
  }
  puts("done");
  return 0;
}
"""

# Acts like a tool that watches a program's memory.
OTHER_HOOK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
static int calls;
int cudaMalloc(void** out, unsigned long bytes) {
  int (*next)(void**, unsigned long) = dlsym(RTLD_NEXT, "cudaMalloc");
  ++calls;
  return next(out, bytes);
}
__attribute__((destructor)) static void tell(void) { printf("hook: %d\\n", calls); }
"""

# Stands for jemalloc, tcmalloc and similar libraries.
OTHER_MALLOC = """
#define _GNU_SOURCE
#include <stddef.h>
#include <string.h>
static char memory[256 << 20];
static size_t used;
static void* take(size_t alignment, size_t bytes) {
  size_t all = bytes + alignment + 32;
  char* begin = memory + __atomic_fetch_add(&used, (all + 15) / 16 * 16, __ATOMIC_RELAXED);
  char* block = (char*)(((size_t)begin + 16 + alignment - 1) / alignment * alignment);
  memcpy(block - 8, &bytes, 8);
  return block;
}
void* malloc(size_t bytes) { return take(16, bytes); }
void free(void* block) { (void)block; }
void* calloc(size_t count, size_t bytes) { return take(16, count * bytes); }
void* memalign(size_t alignment, size_t bytes) { return take(alignment, bytes); }
void* aligned_alloc(size_t alignment, size_t bytes) { return take(alignment, bytes); }
int posix_memalign(void** out, size_t alignment, size_t bytes) {
  *out = take(alignment, bytes);
  return 0;
}
void* realloc(void* block, size_t bytes) {
  void* copy = take(16, bytes);
  size_t before = 0;
  if (block) {
    memcpy(&before, (char*)block - 8, 8);
    memcpy(copy, block, before < bytes ? before : bytes);
  }
  return copy;
}
"""

THREADS_AT_EXIT = """
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
static volatile int busy;
static void* work(void* unused) {
  for (;;) {
    void* block = 0;
    if (cudaMalloc(&block, 70000) == 0) cudaFree(block);
    busy = 1;
  }
  return unused;
}
int main(void) {
  pthread_t thread;
  for (int i = 0; i < 4; ++i) pthread_create(&thread, 0, work, 0);
  while (!busy) usleep(100);
  exit(0);
}
"""

WITHOUT_CUDA = """
int cudaMalloc(void** out, unsigned long bytes) __attribute__((weak));
int cudaFree(void* block) __attribute__((weak));
int cuMemAlloc_v2(unsigned long long* out, unsigned long bytes) __attribute__((weak));
int main(void) {
  void* block = 0;
  unsigned long long address = 0;
  if (!cudaMalloc || !cuMemAlloc_v2) return 9; /* the preload defines them */
  return cudaMalloc(&block, 100) == 3 && cudaFree(&block) == 3 && cuMemAlloc_v2(&address, 1) == 3
             ? 0 : 1;
}
"""

# CuPy for ROCm defines functions of CUDA in its modules, and calls HIP in them.
OWN_DEFINITIONS = """
#include <stdlib.h>
int cudaGetDeviceCount(int* count) { *count = 7; return 0; }
int cudaMalloc(void** out, unsigned long bytes) { *out = malloc(bytes); return *out ? 0 : 2; }
int cudaFree(void* block) { free(block); return 0; }
int use(void) {
  int count = 0;
  void* block = 0;
  if (cudaGetDeviceCount(&count) || cudaMalloc(&block, 100) || cudaFree(block)) return 1;
  return count == 7 ? 0 : 2;
}
"""

LOADS_PRIVATELY = """
#include <dlfcn.h>
int main(int count, char** arguments) {
  void* library = dlopen(arguments[count - 1], RTLD_NOW | RTLD_LOCAL);
  int (*use)(void) = library ? dlsym(library, "use") : 0;
  return use ? use() : 9;
}
"""

# The cudaMalloc of this library comes first, and calls the next cudaMalloc.
HOOK_WITHOUT_CUDA = """
#define _GNU_SOURCE
#include <dlfcn.h>
int cudaMalloc(void** out, unsigned long bytes) {
  int (*next)(void**, unsigned long) = dlsym(RTLD_NEXT, "cudaMalloc");
  return next(out, bytes);
}
"""


def compiled(folder: Path, name: str, source: str, *options: str | Path) -> Path:
    file = folder / f"{name}.c"
    file.write_text(source)
    output = folder / name
    subprocess.run(["gcc", "-O1", "-o", output, file, *options], check=True, capture_output=True)
    return output


def cuda_options() -> list[str | Path]:
    runtime = find_libraries().stand_ins / "libcudart.so.13"
    return ["-I" + found_by_cmake("UVMALLOC_CUDA_INCLUDE_DIR"), runtime, "-lpthread"]


def run(
    folder: Path, program: Path, *preloads: Path, argument: str | Path = "", **variables: str
) -> subprocess.CompletedProcess:
    environment = on_simulated_device(
        without_settings(os.environ, "CUDA_", "LD_"), find_libraries(), Machine(), None
    )
    return subprocess.run(
        [program, argument],
        env={
            **environment,
            "LD_PRELOAD": ":".join(map(str, preloads)),
            "UVMALLOC_CUDA": "1",
            "UVMALLOC_STARTUP_LINE": "0",
            "UVMALLOC_REPORT_DIR": str(folder),
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=120,
    )


def served(folder: Path) -> int:
    return (main_report(folder, -1) or {})["facades"]["device"]["allocations"]


def test_the_library_may_have_any_name(tmp_path: Path) -> None:
    renamed = tmp_path / "memory.so"
    shutil.copy(find_libraries().require_uvmalloc(), renamed)
    program = compiled(tmp_path, "program", PROGRAM, *cuda_options())
    done = run(tmp_path, program, renamed)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    assert served(tmp_path) == 5


@pytest.mark.parametrize("first", [True, False])
def test_another_hook_before_the_same_call(tmp_path: Path, first: bool) -> None:
    ours = find_libraries().require_uvmalloc()
    program = compiled(tmp_path, "program", PROGRAM, *cuda_options())
    hook = compiled(tmp_path, "hook.so", OTHER_HOOK, "-shared", "-fPIC")
    done = run(tmp_path, program, *((hook, ours) if first else (ours, hook)))
    assert (done.returncode, done.stderr) == (0, "")
    # A hook behind uvmalloc is not called for served memory.
    assert done.stdout.splitlines() == ["done", f"hook: {5 if first else 0}"]
    assert served(tmp_path) == 5


def test_another_malloc(tmp_path: Path) -> None:
    ours = find_libraries().require_uvmalloc()
    program = compiled(tmp_path, "program", PROGRAM, *cuda_options())
    other = compiled(tmp_path, "malloc.so", OTHER_MALLOC, "-shared", "-fPIC")
    done = run(tmp_path, program, other, ours)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    assert served(tmp_path) == 5


def test_threads_that_allocate_while_the_process_ends(tmp_path: Path) -> None:
    program = compiled(tmp_path, "program", THREADS_AT_EXIT, *cuda_options())
    for _ in range(10):
        done = run(tmp_path, program, find_libraries().require_uvmalloc())
        assert (done.returncode, done.stderr) == (0, "")


def test_a_program_without_cuda_gets_a_message(tmp_path: Path) -> None:
    program = compiled(tmp_path, "program", WITHOUT_CUDA)
    done = run(tmp_path, program, find_libraries().require_uvmalloc(), LD_AUDIT="")
    assert done.returncode == 0


@pytest.mark.parametrize("serving", ["0", "1"])
def test_a_library_that_defines_functions_of_cuda_itself_keeps_them(
    tmp_path: Path, serving: str
) -> None:
    library = compiled(tmp_path, "own.so", OWN_DEFINITIONS, "-shared", "-fPIC")
    program = compiled(tmp_path, "program", LOADS_PRIVATELY)
    ours = find_libraries().require_uvmalloc()
    done = run(tmp_path, program, ours, argument=library, LD_AUDIT="", UVMALLOC_CUDA=serving)
    assert done.returncode == 0, done.stderr


def test_a_hook_that_calls_the_next_is_not_called_again(tmp_path: Path) -> None:
    hook = compiled(tmp_path, "hook.so", HOOK_WITHOUT_CUDA, "-shared", "-fPIC")
    program = compiled(tmp_path, "program", WITHOUT_CUDA)
    done = run(tmp_path, program, hook, find_libraries().require_uvmalloc(), LD_AUDIT="")
    assert done.returncode == 0, done.stderr


def test_a_static_program_runs_as_without_us(tmp_path: Path) -> None:
    source = '#include <stdio.h>\nint main(void) { puts("static"); return 0; }\n'
    program = compiled(tmp_path, "program", source, "-static")
    done = run(tmp_path, program, find_libraries().require_uvmalloc())
    assert (done.returncode, done.stdout, done.stderr) == (0, "static\n", "")
