"""Programs and libraries that contain CUDA's static runtime, on the simulated device.

The auditor gives them the simulator's runtime, and with the preload uvmalloc's calls
(sim/audit/static_runtime.h).
"""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from uvmalloc._cli.environment import Machine, without_uvmalloc
from uvmalloc.libraries import find_libraries

from tests.preload.conftest import CTYPES, ROOT, Program, environment

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the simulator replaces the runtime only on x86-64"
)
MEMORY_CALLS = ROOT / "tests" / "sim" / "memory_calls.c"
# What the auditor recognizes in a symbol table, without CUDA's runtime: functions of its names.
# They are weak, so that the compiler assumes nothing about their code.
NOT_THE_RUNTIME = """
int libcudart_static_0(void) {{ return 0; }}
__attribute__((weak, visibility("hidden"))) int cudaMalloc(void** out, unsigned long bytes)
{{ (void)out; (void)bytes; return 77; }}
__attribute__((weak, visibility("hidden"))) int cudaNoSuchFunction(void) {{ return 78; }}
{more}
int allocate(void** out) {{ return cudaMalloc(out, 4096); }}
int none(void) {{ return cudaNoSuchFunction(); }}
"""
ASK = """
library = ctypes.CDLL(sys.argv[1])
print(library.allocate(byref(pointer())), library.none())
"""


def newest_runtime_folder() -> Path:
    """The newest release of CUDA's wheel, which scripts/setup unpacks."""
    return Path((ROOT / "build" / "newest-cuda").read_text().strip()) / "nvidia" / "cu13"


def runtime_folder() -> Path:
    """CUDA's wheel, which torch depends on, has the static library and the headers."""
    spec = importlib.util.find_spec("nvidia")
    assert spec is not None and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations))) / "cu13"


FOLDERS = (runtime_folder, newest_runtime_folder)
PT_GNU_EH_FRAME = 0x6474E550


def segment_header(content: bytearray, kind: int) -> int:
    """Where the program header of this kind is in a file."""
    (first,) = struct.unpack_from("<Q", content, 32)
    count = struct.unpack_from("<H", content, 56)[0]
    headers = [first + 56 * i for i in range(count)]
    return next(at for at in headers if struct.unpack_from("<I", content, at)[0] == kind)


def segment(content: bytearray, kind: int) -> int:
    """Where the segment of this kind begins in a file."""
    return struct.unpack_from("<Q", content, segment_header(content, kind) + 8)[0]


def compile_c(output: Path, source: Path, *options: str | Path) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "no C compiler on the path"
    # The static library is made for a linker that sees it after what uses it.
    command = [compiler, "-o", output, source, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return output


def with_static_runtime(
    output: Path, source: Path, *options: str, folder: Path | None = None
) -> Path:
    folder = folder or runtime_folder()
    library = folder / "lib" / "libcudart_static.a"
    system = ("-ldl", "-lpthread", "-lrt", "-lm")
    return compile_c(output, source, f"-I{folder / 'include'}", *options, library, *system)


def answers_of(library: Path, folder: Path) -> str:
    command = [sys.executable, "-c", CTYPES + ASK, library]
    variables = environment(folder, {}, Machine())
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def library_of(tmp_path: Path, more: str) -> Path:
    source = tmp_path / "library.c"
    source.write_text(NOT_THE_RUNTIME.format(more=more))
    return compile_c(tmp_path / "liblibrary.so", source, "-shared", "-fPIC", "-falign-functions=16")


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("options", [(), ("-s",)], ids=["with_names", "stripped"])
def test_a_program_with_the_static_runtime_is_served(
    program: Program, tmp_path: Path, folder: Callable[[], Path], options: tuple[str, ...]
) -> None:
    done = program(
        with_static_runtime(tmp_path / "program", MEMORY_CALLS, *options, folder=folder())
    )
    assert done.served == 3  # two calls of cudaMalloc, and cudaMallocHost
    assert done.reached == 0
    assert done.stderr == ""


@pytest.mark.parametrize("options", [(), ("-s",)], ids=["with_names", "stripped"])
def test_a_program_with_the_static_runtime_runs_without_uvmalloc(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    command = with_static_runtime(tmp_path / "program", MEMORY_CALLS, *options)
    variables = without_uvmalloc(environment(tmp_path, {}, Machine()))
    done = subprocess.run([command], env=variables, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_library_that_is_opened_late_is_served(program: Program, tmp_path: Path) -> None:
    """As a wheel does it. Threads make the first calls at the same time."""
    options = ("-shared", "-fPIC", "-Dmain=run")
    library = with_static_runtime(tmp_path / "libcalls.so", MEMORY_CALLS, *options)
    text = "import threading\nlibrary = ctypes.CDLL(sys.argv[1])\nresults = []\n"
    text += "run = lambda: results.append(library.run())\n"
    text += "threads = [threading.Thread(target=run) for _ in range(8)]\n"
    text += "for each in threads: each.start()\nfor each in threads: each.join()\nprint(results)"
    done = program(sys.executable, "-c", CTYPES + text, library)
    assert done.stdout == f"{[0] * 8}\n"
    assert done.served == 24
    assert done.reached == 0


def of_no_known_layout(tmp_path: Path) -> Path:
    """A stripped program that lists one beginning of a function elsewhere."""
    stripped = with_static_runtime(tmp_path / "program", MEMORY_CALLS, "-s")
    content = bytearray(stripped.read_bytes())
    table = segment(content, PT_GNU_EH_FRAME)
    count = struct.unpack_from("<I", content, table + 8)[0]
    middle = table + 12 + 8 * (count // 2)
    content[middle] ^= 1
    stripped.write_bytes(content)
    return stripped


def test_an_unknown_runtime_of_a_stripped_program_is_left_alone_and_named(tmp_path: Path) -> None:
    stripped = of_no_known_layout(tmp_path)
    variables = environment(tmp_path, {}, Machine())
    done = subprocess.run([stripped], env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1  # its first check fails: no device
    assert f"uvmsim: {stripped} contains CUDA's static runtime" in done.stderr


@pytest.mark.parametrize("broken", ["segments", "table", "encoding", "count"])
def test_a_stripped_file_with_a_wrong_table_is_left_alone(tmp_path: Path, broken: str) -> None:
    """The program itself would run: the system needs the table only for exceptions."""
    stripped = with_static_runtime(tmp_path / "program", MEMORY_CALLS, "-s")
    audit = ctypes.CDLL(str(find_libraries().audit))
    assert audit.uvmsim_replaces_static_runtime(bytes(stripped)) == 1
    content = bytearray(stripped.read_bytes())
    header = segment_header(content, PT_GNU_EH_FRAME)
    table = segment(content, PT_GNU_EH_FRAME)
    beyond = len(content) - 8
    if broken == "segments":
        struct.pack_into("<Q", content, 32, beyond)
    elif broken == "table":
        struct.pack_into("<Q", content, header + 8, beyond)
    elif broken == "encoding":
        content[table + 3] = 0x1B
    else:
        struct.pack_into("<I", content, table + 8, 0xFFFFFFFF)
    stripped.write_bytes(content)
    assert audit.uvmsim_replaces_static_runtime(bytes(stripped)) == 0


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_layouts_are_those_of_the_packages(folder: Callable[[], Path]) -> None:
    script = ROOT / "sim" / "audit" / "runtime_layouts.py"
    library = folder() / "lib" / "libcudart_static.a"
    assert subprocess.run([sys.executable, script, library]).returncode == 0


def test_a_layout_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specification = importlib.util.spec_from_file_location(
        "runtime_layouts", ROOT / "sim" / "audit" / "runtime_layouts.py"
    )
    assert specification is not None and specification.loader is not None
    layouts = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "runtime_layouts", layouts)
    specification.loader.exec_module(layouts)
    listed = layouts.LAYOUTS.read_text()
    monkeypatch.setattr(layouts, "LAYOUTS", tmp_path / "layouts.inc")
    first, second = (each() / "lib" / "libcudart_static.a" for each in FOLDERS)
    layouts.add(first, "13.0")
    assert layouts.is_known(first) and not layouts.is_known(second)
    layouts.add(second, "13.5")
    assert layouts.is_known(first) and layouts.is_known(second)
    with_both = layouts.LAYOUTS.read_text()
    for name in ("cudaMalloc", "cudaFreeAsync_ptsz", "cudaDeviceGetExecutionCtx"):
        (row,) = (line for line in with_both.splitlines() if f"({name}," in line)
        (whole,) = (line for line in listed.splitlines() if f"({name}," in line)
        units = whole.split(", ")
        assert row == f"{units[0]}, {units[1]}, {units[-1]}"


def test_functions_are_replaced_by_name(program: Program, tmp_path: Path) -> None:
    done = program(sys.executable, "-c", CTYPES + ASK, library_of(tmp_path, more=""))
    assert done.stdout == "0 78\n"
    assert done.served == 1


def test_the_runtime_of_cuda_12_is_left_alone(tmp_path: Path) -> None:
    more = "int cudaGetDeviceProperties_v2(void) { return 0; }"
    assert answers_of(library_of(tmp_path, more), tmp_path) == "77 78\n"


def test_other_libraries_with_functions_of_these_names_are_left_alone(tmp_path: Path) -> None:
    library = library_of(tmp_path, more="")
    content = library.read_bytes()
    library.write_bytes(content.replace(b"libcudart_static_", b"libcudart_statix_"))
    assert answers_of(library, tmp_path) == "77 78\n"


@pytest.mark.parametrize("broken", ["sections", "symbols", "names"])
def test_a_file_with_a_wrong_symbol_table_is_left_alone(tmp_path: Path, broken: str) -> None:
    library = library_of(tmp_path, more="")
    content = bytearray(library.read_bytes())
    beyond = len(content) - 8
    (sections,) = struct.unpack_from("<Q", content, 40)
    count = struct.unpack_from("<H", content, 60)[0]
    headers = [sections + 64 * i for i in range(count)]
    table = next(at for at in headers if struct.unpack_from("<I", content, at + 4)[0] == 2)
    names = headers[struct.unpack_from("<I", content, table + 40)[0]]
    offset_at = {"sections": 40, "symbols": table + 24, "names": names + 24}[broken]
    struct.pack_into("<Q", content, offset_at, beyond)
    library.write_bytes(content)
    assert answers_of(library, tmp_path) == "77 78\n"


# ---- the driver calls of a static runtime, which uvmalloc serves on a real device
#
# The look-ups of CUDA 13.0's static runtime whose results calls.def intercepts, as the simulated
# driver saw them: the version with each name, for the legacy default stream and for one per thread.
LOOKED_UP = {
    0: """cuArray3DCreate 3020 cuArrayCreate 3020 cuCtxSynchronize 2000 cuCtxSynchronize 13000
        cuDevicePrimaryCtxReset 7000 cuGetProcAddress 11030 cuGetProcAddress 12000
        cuGraphExecChildGraphNodeSetParams 11010 cuGraphExecDestroy 10000
        cuGraphExecKernelNodeSetParams 12000 cuGraphExecNodeSetParams 12020 cuGraphExecUpdate 12000
        cuGraphInstantiateWithFlags 11040 cuGraphInstantiateWithParams 12000 cuGraphLaunch 10000
        cuImportExternalMemory 10000 cuIpcOpenMemHandle 4010 cuIpcOpenMemHandle 11000
        cuLaunchCooperativeKernel 9000 cuLaunchKernel 4000 cuLaunchKernelEx 11060
        cuLibraryUnload 12000 cuMemAlloc 3020 cuMemAllocAsync 11020 cuMemAllocFromPoolAsync 11020
        cuMemAllocManaged 6000 cuMemAllocPitch 3020 cuMemFree 3020 cuMemFreeAsync 11020
        cuMemFreeHost 2000 cuMemGetAddressRange 3020 cuMemGetInfo 3020 cuMemHostAlloc 2020
        cuMemHostGetDevicePointer 3020 cuMemHostGetFlags 2030 cuMipmappedArrayCreate 5000
        cuModuleUnload 2000 cuPointerGetAttribute 4000 cuPointerGetAttributes 7000
        cuStreamAttachMemAsync 6000 cuStreamBeginCapture 10000 cuStreamBeginCapture 10010
        cuStreamBeginCaptureToGraph 12030 cuStreamDestroy 4000 cuStreamEndCapture 10000""",
    2: """cuGraphInstantiateWithParams 12000 cuGraphLaunch 10000 cuLaunchCooperativeKernel 9000
        cuLaunchKernel 7000 cuLaunchKernelEx 11060 cuMemAllocAsync 11020
        cuMemAllocFromPoolAsync 11020 cuMemFreeAsync 11020 cuStreamAttachMemAsync 7000
        cuStreamBeginCapture 10000 cuStreamBeginCapture 10010 cuStreamBeginCaptureToGraph 12030
        cuStreamEndCapture 10000""",
}
# The runtime finds the look-up itself by dlsym, and a newer form of it by that look-up.
LOOK_UPS = """
driver = ctypes.CDLL("libcuda.so.1")
libc = ctypes.CDLL(None)
libc.dlsym.restype = pointer
class Symbol(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", pointer), ("name", ctypes.c_char_p),
                ("address", pointer)]
LookUp = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, pointer, ctypes.c_int, ctypes.c_uint64,
                          pointer)
by_name = LookUp(libc.dlsym(pointer(driver._handle), b"cuGetProcAddress_v2"))
def look_up(name, version, flags=0):
    found = pointer()
    assert by_name(name.encode(), ctypes.addressof(found), version, flags, None) == 0, name
    return found.value
by_name = LookUp(look_up("cuGetProcAddress", 12000))
def function(name, version, *types, flags=0):
    return ctypes.CFUNCTYPE(ctypes.c_int, *types)(look_up(name, version, flags))
"""


def test_what_the_static_runtime_looks_up_is_ours(program: Program) -> None:
    text = (
        f"LOOKED_UP = {LOOKED_UP!r}"
        + """
for flags, names in LOOKED_UP.items():
    words = names.split()
    for name, version in zip(words[::2], words[1::2]):
        symbol = Symbol()
        assert libc.dladdr(pointer(look_up(name, int(version), flags)), byref(symbol))
        if b"libuvmalloc" not in symbol.file: print(name, version, flags, symbol.name)
driver.cuInit(0)
"""
    )
    done = program(sys.executable, "-c", CTYPES + LOOK_UPS + text)
    left = [line.split()[0] for line in done.stdout.splitlines()]
    assert left == []


def test_memory_from_looked_up_calls_is_served_and_copies_are_right(program: Program) -> None:
    text = """
assert function("cuInit", 2000, ctypes.c_uint)(0) == 0
context, stream, pool = pointer(), pointer(), pointer()
assert function("cuDevicePrimaryCtxRetain", 7000, pointer, ctypes.c_int)(
    ctypes.addressof(context), 0) == 0
assert function("cuCtxSetCurrent", 4000, pointer)(context) == 0
assert function("cuStreamCreate", 2000, pointer, ctypes.c_uint)(ctypes.addressof(stream), 1) == 0
assert function("cuDeviceGetDefaultMemPool", 11020, pointer, ctypes.c_int)(
    ctypes.addressof(pool), 0) == 0
up = function("cuMemcpyHtoD", 3020, pointer, pointer, size)
down = function("cuMemcpyDtoHAsync", 3020, pointer, pointer, size, pointer)
wait = function("cuStreamSynchronize", 2000, pointer)
def made(name, version, types, *arguments, flags=0):
    block = pointer()
    call = function(name, version, pointer, *types, flags=flags)
    assert call(ctypes.addressof(block), *arguments) == 0, name
    return block
text = os.urandom(MIB)
blocks = [(made("cuMemAlloc", 3020, [size], MIB), "cuMemFree", 3020)]
for flags in (0, 2):
    blocks += [
        (made("cuMemAllocAsync", 11020, [size, pointer], MIB, stream, flags=flags), None, flags),
        (made("cuMemAllocFromPoolAsync", 11020, [size, pointer, pointer], MIB, pool, stream,
              flags=flags), None, flags)]
pinned = made("cuMemHostAlloc", 2020, [size, ctypes.c_uint], MIB, 0)
for block, free, version in blocks:
    assert up(block, text, MIB) == 0
    assert down(pinned, block, MIB, stream) == 0 and wait(stream) == 0
    assert ctypes.string_at(pinned, MIB) == text
    if free is None:
        free = function("cuMemFreeAsync", 11020, pointer, pointer, flags=version)
        assert free(block, stream) == 0
    else:
        assert function(free, version, pointer)(block) == 0
assert function("cuMemFreeHost", 2000, pointer)(pinned) == 0
"""
    done = program(sys.executable, "-c", CTYPES + LOOK_UPS + text)
    assert done.served == 6
    assert done.reached == 0
