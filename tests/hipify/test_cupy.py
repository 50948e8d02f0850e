"""CuPy for ROCm, unmodified, allocates and copies on the stand-in for HIP's library.

The modules of CuPy are linked to more libraries of ROCm. Empty libraries with the same names
stand in for them, because the test uses only memory, streams and events, and no kernel.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from uvmalloc._cli.environment import Machine, on_simulated_device, without_settings
from uvmalloc._cli.report import main_report
from uvmalloc.libraries import find_libraries

NOTE = Path(__file__).resolve().parents[2] / "build" / "cupy-rocm"
OF_ROCM = re.compile(r"lib(roc|hip|rccl)[\w-]*\.so\.\d+")
OTHER_NAMES = ("roc", "hipfft", "hipblas", "hipsparse", "hiprand", "hipsolver", "nccl")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not NOTE.exists(), reason="scripts/setup --cupy installs CuPy"),
]

PROGRAM = """
import json
import numpy
import cupy
from cupy.cuda import runtime

found = {"devices": runtime.getDeviceCount()}
pool = cupy.cuda.MemoryPool(cupy.cuda.malloc_managed)
cupy.cuda.set_allocator(pool.malloc)
values = numpy.arange(1 << 17, dtype=numpy.int64)
first = cupy.empty(values.shape, dtype=values.dtype)
first.set(values)
runtime.memAdvise(first.data.ptr, first.nbytes, 3, 0)
runtime.memPrefetchAsync(first.data.ptr, first.nbytes, 0, 0)
second = cupy.empty_like(first)
stream, event = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event()
second.data.copy_from_device_async(first.data, first.nbytes, stream)
event.record(stream)
event.synchronize()
found["equal"] = bool((second.get() == values).all())
found["managed"] = runtime.pointerGetAttributes(first.data.ptr).type == 3
del first, second
found["used_bytes"] = pool.used_bytes()
pool.free_all_blocks()
found["kept_bytes"] = pool.total_bytes()
print(json.dumps(found))
"""


def run(*command: str | Path) -> str:
    done = subprocess.run([*command], capture_output=True, text=True, check=True)
    return done.stdout


def write_empty_libraries(folder: Path, modules: list[Path]) -> None:
    """Writes an empty library for each library of ROCm, except HIP's, that a module needs."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "this test compiles libraries"
    wanted: set[str] = set()
    names: dict[str, str] = {}  # with their version nodes
    for module in modules:
        linked = re.findall(r"NEEDED.*\[(.*?)\]", run("readelf", "-d", "-W", module))
        wanted |= {name for name in linked if OF_ROCM.fullmatch(name)}
        for line in run("nm", "-D", "--undefined-only", module).splitlines():
            name, _, node = line.split()[-1].partition("@")
            if name.startswith(OTHER_NAMES):
                names[name] = node
    assert "librocfft.so.0" in wanted
    source = folder / "empty.c"
    source.write_text("".join(f"int {name}(void) {{ return 1; }}\n" for name in sorted(names)))
    nodes = sorted({node for node in names.values() if node})
    script = folder / "nodes.map"
    for library in wanted:
        prefix = library.removeprefix("lib").split(".")[0].rstrip("0123456789")
        own = [node for node in nodes if node.lower().startswith(prefix.lower())]
        script.write_text(f"{own[0] if own else 'NONE'} {{ global: *; }};\n")
        options = [f"-Wl,-soname,{library}", *([f"-Wl,--version-script={script}"] if own else [])]
        run(compiler, "-shared", "-fPIC", "-w", *options, "-o", folder / library, source)


@pytest.mark.parametrize("preloaded", [False, True])
def test_managed_pools_copies_streams_and_events_work(tmp_path: Path, preloaded: bool) -> None:
    cupy = Path(NOTE.read_text().strip())
    write_empty_libraries(tmp_path, sorted(cupy.rglob("*.so")))
    machine = Machine(capacity_bytes=256 << 20, hip=True)
    environment = on_simulated_device(without_settings(os.environ), find_libraries(), machine, None)
    environment["PYTHONPATH"] = str(cupy)
    environment["LD_LIBRARY_PATH"] += f":{tmp_path}"
    if preloaded:
        environment["LD_PRELOAD"] = str(find_libraries().require_uvmalloc())
        environment["UVMALLOC_CUDA"] = "1"
        environment["UVMALLOC_REPORT_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "devices": 1,
        "equal": True,
        "managed": True,
        "used_bytes": 0,
        "kept_bytes": 0,
    }
    if preloaded:
        facades = (main_report(tmp_path, -1) or {})["facades"]
        assert sum(facade["allocations"] for facade in facades.values()) > 0
