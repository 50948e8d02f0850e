"""Frees during captures: when uvmalloc waits for a device, the wait must not end a capture."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from uvmalloc._cli.environment import Machine
from uvmalloc.libraries import find_libraries

from tests.build_facts import found_by_cmake
from tests.preload.conftest import Program, in_python, run_on

PROGRAM = Path(__file__).parent / "programs" / "capture_frees.c"


@pytest.fixture(scope="module", params=["", "-DCUDA_API_PER_THREAD_DEFAULT_STREAM"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "no C compiler on the path"
    stand_ins = find_libraries().stand_ins
    program = tmp_path_factory.mktemp("capture") / "capture_frees"
    libraries = [stand_ins / "libcudart.so.13", stand_ins / "libcuda.so.1", "-lpthread"]
    headers = ["-isystem", found_by_cmake("UVMALLOC_CUDA_INCLUDE_DIR")]
    options = [request.param] if request.param else []
    subprocess.run([compiler, *options, *headers, PROGRAM, "-o", program, *libraries], check=True)
    return program


@pytest.mark.parametrize("words", [[], ["relaxed"], ["driver"], ["relaxed", "driver"]])
@pytest.mark.parametrize("frees", [1, 64, 300])
def test_frees_leave_the_capture_alone(
    program: Program, built: Path, frees: int, words: list[str]
) -> None:
    run = program(built, str(frees), *words)
    assert run.stdout == "5 6\n5 6\n"
    assert (run.served, run.reached) == (2 * frees + 1, 0)


def test_the_device_is_waited_for_again_after_the_capture(tmp_path: Path) -> None:
    """A capture ends by its call, which may fail, or with its stream."""
    run = in_python(
        run_on(Machine(), tmp_path),
        """
runtime = ctypes.CDLL("libcudart.so.13")
assert runtime.cudaSetDevice(0) == 0 and runtime.cudaFree(None) == 0
def reuses_freed_blocks():
    blocks = [allocate(runtime.cudaMalloc, size(MIB))[1] for i in range(70)]
    for block in blocks: assert runtime.cudaFree(block) == 0
    again = [allocate(runtime.cudaMalloc, size(MIB))[1] for i in range(64)]
    for block in again: assert runtime.cudaFree(block) == 0
    return bool({block.value for block in blocks} & {block.value for block in again})
RELAXED = 2
def captured(end):
    stream, graph = pointer(), pointer()
    assert runtime.cudaStreamCreateWithFlags(byref(stream), 1) == 0
    assert runtime.cudaStreamBeginCapture(stream, RELAXED) == 0
    before = reuses_freed_blocks()
    end(stream, graph)
    runtime.cudaDeviceSynchronize()
    return before, reuses_freed_blocks()
def by_call(stream, graph): assert runtime.cudaStreamEndCapture(stream, byref(graph)) == 0
def by_failure(stream, graph):
    assert runtime.cudaStreamSynchronize(stream) != 0
    assert runtime.cudaStreamEndCapture(stream, byref(graph)) == 901
def with_stream(stream, graph): assert runtime.cudaStreamDestroy(stream) == 0
def after_refusal(stream, graph):
    assert runtime.cudaStreamBeginCapture(stream, RELAXED) != 0
    assert runtime.cudaStreamEndCapture(None, byref(graph)) != 0
    assert runtime.cudaStreamEndCapture(stream, byref(graph)) == 0
""",
    )(
        """
for end in (by_call, by_failure, with_stream, after_refusal): print(end.__name__, captured(end))
"""
    )
    names = ["by_call", "by_failure", "with_stream", "after_refusal"]
    assert run.stdout == "".join(f"{name} (False, True)\n" for name in names)
