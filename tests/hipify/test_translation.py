"""Sources are translated completely from CUDA to HIP, and the result compiles."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HIPIFY = ROOT / "hipify"
TABLES = (HIPIFY / "cuda_to_hip.csv", HIPIFY / "cudart_to_hip.csv")
CUDA_NAME = re.compile(r"\bcu[A-Z]|\bcuda[A-Z]|\bCU(DA)?_")
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror")

sys.path.insert(0, str(HIPIFY))
import translate  # noqa: E402


def header_folders() -> Iterator[Path]:
    """Yields folders of headers. HIP 7.1 comes with triton, HIP 5.2 with Debian."""
    for folder in (
        Path(sysconfig.get_path("purelib")),
        *(Path(entry) for entry in sys.path if entry.endswith("site-packages")),
    ):
        headers = folder / "triton" / "backends" / "amd" / "include"
        if headers.is_dir():
            yield headers
            break
    if (Path("/usr/include/hip") / "hip_runtime_api.h").is_file():
        yield Path("/usr/include")


def version_of(headers: Path) -> str:
    text = (headers / "hip" / "hip_version.h").read_text()
    return ".".join(re.findall(r"#define HIP_VERSION_(?:MAJOR|MINOR) (\d+)", text))


@pytest.fixture(scope="module")
def rows() -> dict[str, translate.Row]:
    return translate.read_tables(list(TABLES))


def translated_files() -> list[str]:
    return (HIPIFY / "translated.txt").read_text().split()


def run_translate(
    output: Path, *options: str, table: Path = TABLES[0]
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, HIPIFY / "translate.py", "--table", table, "--root", ROOT]
    return subprocess.run(
        [*command, "--output", output, *options], capture_output=True, text=True, check=False
    )


def write_runtime(folder: Path, table: Path = TABLES[0]) -> Path:
    """Translates the runtime below `folder` and returns the file that compares types."""
    check = folder / "types.cpp"
    files = [file for file in translated_files() if file.startswith("runtime/")]
    done = run_translate(folder, "--check", str(check), *files, table=table)
    assert done.returncode == 0, done.stderr
    return check


def compile_(compiler: str, headers: Path, folder: Path, source: Path) -> str:
    """Returns the compiler's messages, or an empty string if there are none."""
    command = [compiler, "-std=c++20", *STRICT, "-fsyntax-only", "-D__HIP_PLATFORM_AMD__"]
    # Uses a separate folder, because /usr/include must keep its place in the search.
    (folder / "headers").mkdir(exist_ok=True)
    if not (folder / "headers" / "hip").is_symlink():
        (folder / "headers" / "hip").symlink_to(headers / "hip")
    command += ["-DFMT_HEADER_ONLY", "-I", folder, "-I", ROOT / "include", "-I", ROOT]
    command += ["-isystem", folder / "headers"]
    done = subprocess.run([*command, source], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (done.stderr == "")
    return done.stderr


# ---- the tables


def test_every_file_is_translated_without_a_name_of_cuda_left(
    rows: dict[str, translate.Row],
) -> None:
    files = translated_files()
    assert len(files) > 15
    for file in files:
        text = translate.translate((ROOT / file).read_text(), rows, file)
        assert CUDA_NAME.findall(text) == [], file
        assert "cuda" not in translate.translate(file, rows, file)


def test_bound_calls_have_a_row_each_and_twins_of_their_own(
    rows: dict[str, translate.Row],
) -> None:
    source = (ROOT / "runtime/cuda/driver_api.cpp").read_text()
    bound = [name for _, name in translate.BINDING.findall(source)]
    assert len(bound) > 30, "the names could not be found in the source"
    twins = [rows[name].hip for name in bound]
    assert len(set(twins)) == len(twins)
    assert all(re.fullmatch(r"hip[A-Z]\w+", twin) for twin in twins)
    # Calls that HIP 5.2 does not have must not be required.
    late = {name for name in bound if rows[name].version() > 50_200_000}
    assert late == {name for name in bound if rows[name].how == "optional"}
    assert late.isdisjoint(re.findall(r'bind\.required\(api->\w+, "(\w+)"\)', source))


def test_every_row_is_used(rows: dict[str, translate.Row]) -> None:
    words: set[str] = set()
    for file in translated_files():
        text = (ROOT / file).read_text()
        words |= set(translate.WORD.findall(text + file)) | set(re.findall(r"<(cuda\.h)>", text))
        words |= {"cuda_runtime_api"}
    unused = rows.keys() - words
    assert unused == set()


# ---- what is refused


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x = cuMemAllocPitch(a);", "f:1: cuMemAllocPitch has no row in the table"),
        ("// see\n// cudaMalloc", "f:2: cudaMalloc has no row in the table"),
        ('dlsym(l, "cuNothing")', "f:1: cuNothing has no row in the table"),
        ("int libcuda_path;", "f:1: libcuda_path has no row in the table"),
        ("CUDA_ERROR_NEW", "f:1: CUDA_ERROR_NEW has no row in the table"),
        ("api.cuMemcpyAsync(a, b)", "f:1: cuMemcpyAsync is called, but its twin differs"),
    ],
)
def test_a_name_without_a_way_to_hip_is_refused(text: str, complaint: str) -> None:
    driver_rows = translate.read_tables([TABLES[0]])
    with pytest.raises(translate.TranslationError) as raised:
        translate.translate(text, driver_rows, "f")
    assert str(raised.value) == complaint


def test_whole_words_are_replaced_and_headers_in_includes(
    rows: dict[str, translate.Row],
) -> None:
    text = '#include <cuda.h>\nnamespace uvm::cuda { CUresult f("cuMemcpyAsync"); }  // CUDA'
    assert translate.translate(text, rows, "f") == (
        "#include <hip/hip_runtime_api.h>\n"
        'namespace uvm::hip { hipError_t f("hipMemcpyAsync"); }  // HIP'
    )


def test_nothing_is_written_where_a_name_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    lines = TABLES[0].read_text().splitlines()
    table.write_text("\n".join(line for line in lines if not line.startswith("cuMemFree_v2,")))
    output = tmp_path / "output"
    files = [file for file in translated_files() if file.startswith("runtime/")]
    done = run_translate(output, *files, table=table)
    assert done.returncode == 1
    assert "runtime/cuda/driver_api.cpp" in done.stderr and "cuMemFree_v2 has no row" in done.stderr
    assert not output.exists()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("cuNew,hipNew,4.2,maybe", "cuNew is 'maybe'; accepted: same, cast, shim, optional, word,"),
        ("cuInit,hipInit,4.2,same\ncuInit,hipInit2,4.2,same", "cuInit has two rows"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, line: str, complaint: str) -> None:
    table = tmp_path / "table.csv"
    table.write_text(f"cuda,hip,since,how\n{line}\n")
    with pytest.raises(translate.TranslationError, match=re.escape(complaint)):
        translate.read_tables([table])


# ---- the result


def compilers() -> list[str]:
    found = [name for name in ("g++", "clang++") if shutil.which(name)]
    assert found, "neither g++ nor clang++ is on the path"
    return found


def test_headers_of_hip_are_there_to_compile_against() -> None:
    assert list(header_folders()), "neither triton nor libamdhip64-dev is installed: scripts/setup"


@pytest.mark.parametrize("headers", list(header_folders()), ids=version_of)
@pytest.mark.parametrize("compiler", compilers())
def test_the_runtime_compiles_without_warnings_and_its_calls_have_the_declared_types(
    tmp_path: Path, compiler: str, headers: Path
) -> None:
    check = write_runtime(tmp_path)
    assert check.read_text().count("static_assert") > 30
    sources = [check, ROOT / "runtime/hip/vendor.cpp"]
    sources += (tmp_path / "runtime" / "hip").glob("*.cpp")
    for source in sources:
        assert compile_(compiler, headers, tmp_path, source) == "", source


def test_a_twin_with_another_signature_does_not_compile(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    right = "cuEventCreate,hipEventCreateWithFlags,4.2,same"
    text = TABLES[0].read_text()
    assert right in text
    table.write_text(text.replace(right, "cuEventCreate,hipEventCreate,4.2,same"))
    check = write_runtime(tmp_path, table)
    said = compile_(compilers()[0], next(header_folders()), tmp_path, check)
    assert "static assertion failed" in said and "event_create" in said
