"""A program with more rights than its caller ignores the caller's variables."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from uvmalloc._cli.credentials import credentials_of

from .conftest import Installed, run

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can raise rights")

NOBODY = 65534
PROGRAM = """
#include <stdio.h>
#include <uvmalloc/uvmalloc.h>
int main(int argc, char** argv) {
  uvmalloc_allocator* allocator;
  void* block;
  if (uvmalloc_process_allocator(&allocator) != UVMALLOC_OK) return puts(uvmalloc_last_error()), 1;
  if (uvmalloc_allocate(allocator, UVMALLOC_HOST, 0, 1 << 24, 0, NULL, &block) != UVMALLOC_OK) {
    return puts(uvmalloc_last_error()), 1;
  }
  if (uvmalloc_free(allocator, block) != UVMALLOC_OK) return 1;
  puts("served");
  fflush(stdout);
  if (argc > 1) getchar();
  return 0;
}
"""


@pytest.fixture
def program(installed: Installed) -> Iterator[Path]:
    """Builds the program in an open folder, on a file system that allows raised rights."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        source, binary = Path(folder, "program.c"), Path(folder, "program")
        source.write_text(PROGRAM)
        paths = f"-Wl,--disable-new-dtags,-rpath,{installed.libraries}:{installed.stand_ins}"
        run(
            "cc", source, "-o", binary, f"-I{installed.headers}", f"-L{installed.libraries}",
            "-luvmalloc", paths,
        )  # fmt: skip
        yield binary


def as_nobody(program: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program], user=NOBODY, group=NOBODY, extra_groups=[], env=variables, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip


def test_a_users_variables_make_it_write_to_no_file(program: Path, tmp_path: Path) -> None:
    precious, reports = tmp_path / "precious", tmp_path / "reports"
    precious.write_text("precious")
    reports.mkdir()
    wanted = {"UVMALLOC_TRACE": str(precious), "UVMALLOC_REPORT_DIR": str(reports)}
    wanted |= {"UVMALLOC_RUNTIME": "another", "UVMALLOC_REPORT": "stderr", "UVMALLOC_LOG": "debug"}
    program.chmod(0o4755)
    finished = as_nobody(program, **wanted)
    assert (finished.returncode, finished.stdout) == (0, "served\n"), finished.stderr
    assert "raised rights" in finished.stderr
    assert finished.stderr.count("\n") == 1, "the level of the log is the caller's, too"
    assert precious.read_text() == "precious"
    assert list(reports.iterdir()) == []

    # Without raised rights, the same variables have their effect.
    del wanted["UVMALLOC_RUNTIME"]
    ordinary = subprocess.run([program], env=wanted, stderr=subprocess.PIPE, check=True)
    assert b"raised rights" not in ordinary.stderr
    assert precious.read_bytes() != b"precious"
    assert [file.suffix for file in reports.iterdir()] == [".json"]
    written = [precious, *reports.iterdir()]
    assert [file.stat().st_mode & 0o777 for file in written] == [0o600, 0o600]


def test_top_takes_nothing_from_the_environment_of_such_a_process(program: Path) -> None:
    program.chmod(0o4755)
    process = subprocess.Popen(
        [program, "wait"], user=NOBODY, group=NOBODY, extra_groups=[], env={},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == b"served\n"
    assert credentials_of(process.pid) is None
    process.stdin.close()
    assert process.wait(timeout=60) == 0
