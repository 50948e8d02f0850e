"""clang-tidy checks a file when the file or something that it includes has changed."""

from __future__ import annotations

import subprocess
import sys

from tests.hipify.test_translation import ROOT

FILES = (
    "allocator/base/machine_memory.cpp",
    "preload/served_memory.cpp",
    "preload/symbol_lookup.cpp",
)


def concerned(*changed: str, files: tuple[str, ...] = FILES) -> list[str]:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "changed_sources.py", *files],
        input="".join(f"{name}\n" for name in changed),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_a_source_concerns_itself() -> None:
    assert concerned(FILES[1], "docs/settings.md") == [FILES[1]]
    assert concerned("docs/settings.md") == []


def test_a_header_concerns_those_that_include_it() -> None:
    assert concerned("preload/served_memory.hpp") == list(FILES[1:])


def test_a_header_concerns_those_that_include_it_by_another() -> None:
    sources = ("allocator/placement/mover.cpp", "allocator/base/machine_memory.cpp")
    assert concerned("include/uvmalloc/place.hpp", files=sources) == [sources[0]]
