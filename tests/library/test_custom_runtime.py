"""An external kind of device. The example is built from the installed tree alone, without the
sources of uvmalloc, and programs that were built earlier run on it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from uvmalloc.libraries import find_libraries

from .conftest import ROOT, Installed, run
from .test_install import CONSUMER

pytestmark = pytest.mark.slow

EXAMPLE = ROOT / "examples" / "custom_runtime"
PROGRAM_OUTPUT = "0.2.0 moved=16777216 prefetched=1\n"


@pytest.fixture(scope="session")
def host_threads(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the example and returns its shared object."""
    folder = tmp_path_factory.mktemp("custom_runtime")
    shutil.copytree(EXAMPLE, folder / "source")
    run(
        *("cmake", "-G", "Ninja", "-S", folder / "source", "-B", folder / "build"),
        f"-DCMAKE_PREFIX_PATH={installed.prefix}",
    )
    run("cmake", "--build", folder / "build")
    assert str(ROOT) not in (folder / "build" / "build.ninja").read_text()
    return folder / "build" / "libhost_threads.so"


@pytest.fixture(scope="session", params=["uvmalloc", "uvmalloc-static"])
def program(
    request: pytest.FixtureRequest, installed: Installed, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Builds the C program, which knows nothing of the example."""
    built = tmp_path_factory.mktemp("program") / "program"
    flags = installed.pkg_config("--cflags", "--libs", request.param)
    run("cc", "-std=c11", CONSUMER / "program.c", "-o", built, *flags)
    return built


def test_it_needs_nothing_of_uvmalloc_when_it_runs(host_threads: Path) -> None:
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", host_threads))
    assert needed == ["libc.so.6"]
    exported = run("nm", "--dynamic", "--defined-only", "--format=just-symbols", host_threads)
    assert exported.split() == ["uvmalloc_runtime"]


def test_the_c_program_runs_on_it(program: Path, installed: Installed, host_threads: Path) -> None:
    output = run(program, host_threads, LD_LIBRARY_PATH=str(installed.libraries))
    assert output == PROGRAM_OUTPUT


def test_the_variable_names_the_runtime_of_a_program_that_names_none(
    program: Path, installed: Installed, host_threads: Path
) -> None:
    found = {"LD_LIBRARY_PATH": str(installed.libraries)}
    assert run(program, UVMALLOC_RUNTIME=str(host_threads), **found) == PROGRAM_OUTPUT
    named = run(program, host_threads, UVMALLOC_RUNTIME="another", **found)
    assert named == PROGRAM_OUTPUT, "the program's own word counts"


def test_it_passes_the_conformance_suite_of_a_build_that_has_not_seen_it(
    host_threads: Path,
) -> None:
    libraries = find_libraries().folder
    output = run(
        libraries.parent / "bin" / "conformance_test",
        "--gtest_filter=*/host_threads*",
        UVM_TEST_HOST_THREADS=str(host_threads),
        LD_LIBRARY_PATH=str(libraries / "sim"),
    )
    [passed] = re.findall(r"\[  PASSED  \] (\d+) tests", output)
    # The devices of this runtime do not reach ordinary memory.
    skipped = set(re.findall(r"\[  SKIPPED \] \S+\.(\w+)/", output))
    assert skipped == {"OrdinaryMemoryTakesHintsAndCopiesWhereDevicesReachIt"}
    assert int(passed) + len(skipped) == len(re.findall(r"\[ RUN      \]", output)) > 20


def test_the_process_allocator_runs_on_it(
    installed: Installed, host_threads: Path, tmp_path: Path
) -> None:
    source = tmp_path / "program.c"
    source.write_text("""
#include <stdio.h>
#include <string.h>
#include <uvmalloc/uvmalloc.h>
int main(void) {
  static char doctor[65536];
  uvmalloc_allocator* allocator;
  void* block;
  if (uvmalloc_process_allocator(&allocator) != UVMALLOC_OK) {
    return puts(uvmalloc_last_error()), 1;
  }
  if (uvmalloc_allocate(allocator, UVMALLOC_HOST, 0, 1 << 24, 0, NULL, &block) != UVMALLOC_OK) {
    return puts(uvmalloc_last_error()), 1;
  }
  memset(block, 1, 1 << 24);
  uvmalloc_doctor_json(doctor, sizeof doctor);
  puts(strstr(doctor, "Threads of the host") != NULL ? "on threads" : doctor);
  return 0;
}
""")
    program = tmp_path / "program"
    run("cc", source, "-o", program, *installed.pkg_config("--cflags", "--libs", "uvmalloc"))
    found = {"LD_LIBRARY_PATH": str(installed.libraries)}
    assert run(program, UVMALLOC_RUNTIME=str(host_threads), **found) == "on threads\n"
    failed = subprocess.run(
        [program],
        env={"UVMALLOC_RUNTIME": f"{tmp_path}/absent.so", **found},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert failed.returncode == 1
    assert failed.stdout == (
        f"the runtime '{tmp_path}/absent.so' cannot be used: {tmp_path}/absent.so: cannot open "
        "shared object file: No such file or directory\n"
    )
    assert failed.stderr.count("\n") == 1, "the log says it in one line"


def test_a_size_that_it_does_not_accept_is_the_reason_without_a_device(
    program: Path, installed: Installed, host_threads: Path
) -> None:
    failed = subprocess.run(
        [program, host_threads],
        env={"HOST_THREADS_MIB": "much", "LD_LIBRARY_PATH": str(installed.libraries)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert failed.returncode == 1
    assert failed.stderr.endswith(
        "UVMALLOC_ERROR_NO_DEVICE: host_threads: initialize: HOST_THREADS_MIB is not a number "
        "from 1 to 1048576 (5)\n"
    )
