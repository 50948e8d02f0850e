"""libuvmalloc.so exports what preload/exported_names.txt lists: nothing less, nothing more."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from uvmalloc.libraries import find_libraries

LISTED = [
    line
    for line in (Path(__file__).resolve().parents[2] / "preload/exported_names.txt")
    .read_text()
    .splitlines()
    if line and not line.startswith("#")
]


def names(library: Path, kind: str) -> set[str]:
    """Dynamic symbols as the list writes them: C++ of ours demangled and without arguments."""
    command = ["nm", "-D", kind, "--format=posix", library]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    linked = [line.split(maxsplit=1)[0].split("@")[0] for line in lines]
    command = ["c++filt"]
    readable = subprocess.run(
        command, input="\n".join(linked), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return {
        re.sub(r"(\[abi:\w+\])?(\(.*)?$", "", text) if "uvm::" in text else name
        for name, text in zip(linked, readable, strict=True)
    }


def test_the_library_exports_the_list() -> None:
    exported = names(find_libraries().require_uvmalloc(), "--defined-only")
    assert sorted(exported - set(LISTED)) == [], "exported but not in preload/exported_names.txt"
    assert sorted(set(LISTED) - exported) == [], "in preload/exported_names.txt but not exported"


def test_the_list_names_each_once() -> None:
    assert sorted(LISTED) == sorted(set(LISTED))


def test_the_plugins_use_what_is_listed() -> None:
    plugins = find_libraries().plugins()
    if not plugins:
        pytest.skip("this build has no PyTorch plugin")
    for plugin in plugins:
        used = {
            name
            for name in names(plugin, "--undefined-only")
            if name.startswith(("uvm::", "uvmalloc_")) or " for uvm::" in name
        }
        assert sorted(used - set(LISTED)) == []


def test_libraries_find_each_other_by_their_own_place_alone() -> None:
    """The wheel takes them as they were built; an empty element would be the current folder."""
    libraries = [path for path in find_libraries().folder.rglob("*.so*") if not path.is_symlink()]
    assert len(libraries) > 3
    for library in libraries:
        command = ["readelf", "-d", library]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for path in re.findall(r"PATH\).*\[(.*)\]", said):
            assert all(element.startswith("$ORIGIN") for element in path.split(":")), library
