"""Every public function of C and C++ has its rows in matrix_test.cpp."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .test_exports import LISTED, names_used_by_plugins

ROOT = Path(__file__).resolve().parents[2]
HEADER = (ROOT / "include/uvmalloc/uvmalloc.h").read_text()
TABLE = Path(__file__).with_name("matrix_test.cpp").read_text()

# The ways to use each function. The test with a row's name runs the whole table.
ROWS = (
    "SecondDevice",
    "SideStream",
    "LegacyDefaultStream",
    "PerThreadDefaultStream",
    "InsideACapture",
    "AnotherThreadReads",
    "TwoAtOnce",
    "AfterAnotherAllocatorHasEnded",
    "AfterFork",
    "SignalsComeMeanwhile",
)

CLASSES = tuple(
    f"uvm::{name}::"
    for name in (
        "CachingManagedAllocator",
        "Inspection",
        "KernelUses",
        "Limits",
        "ManagedMemoryResource",
        "PrivatePools",
        "Streams",
        "Tracing",
    )
)
FREE_FUNCTIONS = ("uvm::free_after", "uvm::free_or_log")
# Functions of the C++ classes, each with the function of C that does the same.
SAME = {
    "CachingManagedAllocator": "uvmalloc_create",
    "~CachingManagedAllocator": "uvmalloc_destroy",
    "find": "uvmalloc_describe",
    "forget": "uvmalloc_forget_stream",
    "device_residency": "uvmalloc_get_residency",
    "exact_residency": "uvmalloc_get_residency",
    "residency": "uvmalloc_get_residency",
    "mark": "uvmalloc_mark_trace",
    "note": "uvmalloc_note_uses",
    "release": "uvmalloc_move",
    "start": "uvmalloc_start_trace",
    "statistics": "uvmalloc_get_statistics",
    "stop": "uvmalloc_stop_trace",
}
# These change nothing and wait for nothing, or are half of what a preload does at a capture.
WITHOUT_ROWS = frozenset(
    [
        "budget_bytes",
        "check_invariants",
        "configuration",
        "devices",
        "figure_store",
        "first_budget_bytes",
        "free_bytes",
        "hints",
        "host_backing",
        "in_forked_child",
        "live_figures",
        "runtime",
        "runtime_calls",
        "segments",
        "uses_of",
        "wanted",
        "begin_capture",
        "end_capture",
    ]
)


def c_functions(header: str) -> set[str]:
    without_comments = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    return set(re.findall(r"UVMALLOC_API\b[^;(]*?\b(uvmalloc_\w+)\(", without_comments))


def cpp_functions(exported: list[str], used_by_plugins: set[str]) -> set[str]:
    """Returns the functions for programs; tests/pytorch/matrix.py has the plugin's rows."""
    public = (*CLASSES, *FREE_FUNCTIONS)
    return {name for name in exported if name.startswith(public)} - used_by_plugins


def named_in(table: str, begin: str) -> set[str]:
    """Returns the names in the strings of the table that begins with `begin`."""
    rest = table[table.index(begin) :]
    texts = re.findall(r'"([^"]*)"', rest[: rest.index("\n};")])
    return {name for text in texts for name in text.split() if name.startswith("uvm")}


def gaps(public: set[str], table: str) -> list[str]:
    with_rows = named_in(table, "kUses[]")
    known = with_rows | named_in(table, "kWithoutRows[]")
    found = []
    for name in sorted(public):
        short = name.rpartition("::")[2]
        same = {name, f"uvmalloc_{short}", SAME.get(short, "")}
        if not same & known and short not in WITHOUT_ROWS:
            found.append(f"{name}: no rows")
    listed = {name for name in known if not name.startswith("uvm::")}
    return found + [f"{name}: is not public" for name in sorted(listed - public)]


@pytest.fixture(scope="module")
def public() -> set[str]:
    return c_functions(HEADER) | cpp_functions(LISTED, names_used_by_plugins())


def test_every_public_function_has_rows(public: set[str]) -> None:
    assert gaps(public, TABLE) == []


def test_the_header_and_the_library_have_the_same_c_functions() -> None:
    exported = {name for name in LISTED if re.fullmatch(r"uvmalloc_\w+", name)}
    assert c_functions(HEADER) < exported


def test_every_row_is_there() -> None:
    assert tuple(re.findall(r"^TEST_F\(Matrix, (\w+)\)", TABLE, flags=re.MULTILINE)) == ROWS


def test_a_new_function_without_rows_is_found(public: set[str]) -> None:
    planted = HEADER + "UVMALLOC_API int uvmalloc_planted(int* out) UVMALLOC_NOEXCEPT;\n"
    assert gaps(public | c_functions(planted), TABLE) == ["uvmalloc_planted: no rows"]
    method = "uvm::CachingManagedAllocator::planted"
    found = cpp_functions([*LISTED, method], names_used_by_plugins())
    assert gaps(public | found, TABLE) == [f"{method}: no rows"]
    assert gaps(public, TABLE.replace('"uvmalloc_step_boundary"', '""')) == [
        "uvm::KernelUses::step_boundary: no rows",
        "uvmalloc_step_boundary: no rows",
    ]
