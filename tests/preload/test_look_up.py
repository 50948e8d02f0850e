"""Functions that a program looks up, with libuvmalloc_preload.so preloaded.

scripts/cross_test runs the same program on 64-bit ARM, which has other machine code for
look-ups.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from uvmalloc._cli.environment import without_settings
from uvmalloc.libraries import find_libraries

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the program and the library that stands for the driver, and returns their folder."""
    folder = tmp_path_factory.mktemp("look_up")
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "no C compiler on the path"
    driver = [PROGRAMS / "small_driver.c", "-o", folder / "libcuda.so.1"]
    subprocess.run([compiler, "-shared", "-fPIC", *driver], check=True)
    subprocess.run([compiler, PROGRAMS / "look_up.c", "-o", folder / "look_up"], check=True)
    return folder


@pytest.mark.parametrize(("switch", "whose"), [(None, "theirs"), ("0", "theirs"), ("1", "ours")])
def test_look_ups_find_the_function_that_linking_would(
    built: Path, switch: str | None, whose: str
) -> None:
    environment = without_settings(os.environ, "CUDA_", "LD_")
    environment["LD_PRELOAD"] = str(find_libraries().require_uvmalloc())
    if switch is not None:
        environment["UVMALLOC_CUDA"] = switch
    done = subprocess.run(
        [built / "look_up", built / "libcuda.so.1", whose],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "all found\n", "")
