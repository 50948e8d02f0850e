"""libuvmalloc_preload.so changes and prints nothing in programs that have no use for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from uvmalloc._cli.environment import without_settings
from uvmalloc.libraries import find_libraries

SWITCHES = [None, "0", "1"]


@pytest.fixture(scope="session")
def static_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds a static program. No loader sees it, so the preload must not matter to it."""
    folder = tmp_path_factory.mktemp("static")
    source = folder / "program.c"
    source.write_text('#include <stdio.h>\nint main(void) { puts("static"); return 5; }\n')
    program = folder / "program"
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "no C compiler on the path"
    subprocess.run([compiler, "-static", "-o", program, source], check=True)
    return program


def run(
    *command: str | Path, switch: str | None, preload: Path | None
) -> subprocess.CompletedProcess[str]:
    environment = without_settings(os.environ, "CUDA_", "LD_")
    if preload is not None:
        environment["LD_PRELOAD"] = str(preload)
    if switch is not None:
        environment["PYTORCH_ENABLE_UNIFIED_MEMORY"] = switch
    return subprocess.run(
        [str(word) for word in command], env=environment, capture_output=True, text=True, timeout=60
    )


def assert_unnoticed(*command: str | Path, switch: str | None) -> None:
    """Checks that the program does the same with and without the preload."""
    expected = run(*command, switch=switch, preload=None)
    library = find_libraries().require_uvmalloc()
    seen = run(*command, switch=switch, preload=library)
    assert (seen.returncode, seen.stdout, seen.stderr) == (
        expected.returncode,
        expected.stdout,
        expected.stderr,
    )


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize(
    "command",
    [
        ("true",),
        ("sh", "-c", "echo out; echo err >&2; exit 3"),
        ("sh", "-c", "(exit 4); echo $?; true | cat; exit 6"),
        ("sh", "-c", "exec sh -c 'kill -TERM $$'"),
        ("git", "--version"),
        (sys.executable, "-c", "import sys; print(sys.version); sys.exit(9)"),
        (
            sys.executable,
            "-c",
            "import os; pid = os.fork(); os._exit(0) if pid == 0 else os.wait()",
        ),
        (sys.executable, "-c", "import subprocess; print(subprocess.check_output(['echo', 'x']))"),
        (
            sys.executable,
            "-c",
            "import threading; [threading.Thread(target=int).start() for _ in '1234']",
        ),
        (sys.executable, "-c", "import numpy; print(numpy.zeros(1 << 20).sum())"),
    ],
    ids=lambda command: " ".join(command)[-60:].replace("/", "_"),
)
def test_a_program_without_a_device_does_not_notice(command, switch):
    assert_unnoticed(*command, switch=switch)


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_static_program_does_not_notice(static_program, switch):
    assert_unnoticed(static_program, switch=switch)


@pytest.mark.parametrize("switch", SWITCHES)
def test_no_report_is_left_by_a_program_without_a_device(tmp_path, switch):
    library = find_libraries().require_uvmalloc()
    environment = {"PATH": os.environ["PATH"], "LD_PRELOAD": str(library)}
    environment["UVMALLOC_REPORT_DIR"] = str(tmp_path)
    if switch is not None:
        environment["PYTORCH_ENABLE_UNIFIED_MEMORY"] = switch
    finished = subprocess.run(["true"], env=environment, capture_output=True, text=True)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_jemalloc_takes_no_options_from_outside() -> None:
    """jemalloc reads no variable and no file in /etc; the library does not contain its name."""
    library = find_libraries().require_uvmalloc()
    environment = {
        "PATH": os.environ["PATH"],
        "LD_PRELOAD": str(library),
        "UVM_JE_MALLOC_CONF": "stats_print:true,nonsense:1",
    }
    finished = subprocess.run(["true"], env=environment, capture_output=True, text=True)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "")
    assert b"uvm_je_malloc.conf" not in library.read_bytes()


def test_a_torch_of_another_version_is_refused_with_one_line(tmp_path: Path) -> None:
    """The libraries have torch's names; the version file is that of a torch without a plugin."""
    package = tmp_path / "torch"
    (package / "lib").mkdir(parents=True)
    (package / "version.py").write_text("__version__ = '3.4.5+cu140'\n")
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "no C compiler on the path"
    names = ["libtorch_cuda.so", "libc10_cuda.so"]
    source = tmp_path / "empty.c"
    source.write_text("int uvmalloc_test_nothing;\n")
    for name in names:
        target = package / "lib" / name
        subprocess.run([compiler, "-shared", "-o", target, source], check=True)
    program = "import ctypes\n"
    program += "".join(f"ctypes.CDLL({str(package / 'lib' / name)!r})\n" for name in names)
    program += "ctypes.CDLL(None).__cudaRegisterFatBinaryEnd(None)\nprint('unharmed')\n"
    library = find_libraries().require_uvmalloc()
    seen = run(sys.executable, "-c", program, switch="1", preload=library)
    assert (seen.returncode, seen.stdout) == (0, "unharmed\n")
    assert seen.stderr.count("\n") == 1
    assert "torch 3.4.5+cu140" in seen.stderr and "keeps its own allocators" in seen.stderr
    off = run(sys.executable, "-c", program, switch="0", preload=library)
    assert (off.returncode, off.stdout, off.stderr) == (0, "unharmed\n", "")


def test_a_program_loads_the_library_when_no_static_thread_local_storage_is_left(
    tmp_path: Path,
) -> None:
    """The program keeps the C library's malloc: the jemalloc inside serves the allocator only."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "no C compiler on the path"
    source = tmp_path / "hog.c"
    source.write_text(
        '__thread char uvmalloc_test_hog[256] __attribute__((tls_model("initial-exec")));\n'
        "char *uvmalloc_test_bytes(void) { return uvmalloc_test_hog; }\n"
    )
    hogs = [tmp_path / f"hog{i}.so" for i in range(64)]
    subprocess.run([compiler, "-shared", "-fPIC", "-o", hogs[0], source], check=True)
    for hog in hogs[1:]:
        shutil.copyfile(hogs[0], hog)
    program = tmp_path / "late_load"
    subprocess.run([compiler, "-o", program, Path(__file__).parent / "late_load.c"], check=True)
    library = find_libraries().require_uvmalloc()
    seen = run(program, library, *hogs, switch=None, preload=None)
    assert seen.stdout.splitlines() == [
        "hogs: no room left",
        "malloc before: libc.so.6",
        "library: loaded",
        "malloc after: libc.so.6",
        "malloc of the library: libc.so.6",
        "free of the library: libc.so.6",
    ]
    assert (seen.returncode, seen.stderr) == (0, "")


def test_no_name_of_jemalloc_or_of_the_c_allocator_is_exported() -> None:
    library = find_libraries().require_uvmalloc()
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True
    )
    names = [line.split()[-1] for line in listing.stdout.splitlines()]
    assert "uvmalloc_version" in names
    c_allocator = {"malloc", "free", "calloc", "realloc", "aligned_alloc", "posix_memalign"}
    assert [name for name in names if "je_" in name or name in c_allocator] == []
