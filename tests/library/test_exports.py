"""The names that the libraries export.

libuvmalloc.so exports those in allocator/exported_names.txt and no other. libuvmalloc_preload.so
exports these, the calls in preload/calls.def, and the names in preload/exported_names.txt.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from uvmalloc.libraries import find_libraries

from tests.preload.conftest import listed_calls

ROOT = Path(__file__).resolve().parents[2]


def listed(file: str) -> list[str]:
    lines = (ROOT / file).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


INTERFACE = listed("allocator/exported_names.txt")
LISTED = INTERFACE + listed("preload/exported_names.txt") + listed_calls()


def names(library: Path, kind: str) -> set[str]:
    """Returns dynamic symbols as the list writes them, with uvmalloc's C++ names demangled."""
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


@pytest.mark.parametrize(
    ("library", "wanted"),
    [("libuvmalloc.so", INTERFACE), ("libuvmalloc_preload.so", LISTED)],
    ids=["linked", "preloaded"],
)
def test_the_library_exports_the_list(library: str, wanted: list[str]) -> None:
    exported = names(find_libraries().folder / library, "--defined-only")
    exported -= {name for name in exported if re.fullmatch(r"UVMALLOC_\d+\.\d+", name)}
    assert sorted(exported - set(wanted)) == [], "exported but not listed"
    assert sorted(set(wanted) - exported) == [], "listed but not exported"


def test_names_to_link_with_have_the_minor_version() -> None:
    """Two minor versions in one process then keep their calls apart."""
    library = find_libraries().folder / "libuvmalloc.so"
    command = ["nm", "-D", "--defined-only", "--format=posix", library]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    versions = {line.split()[0].partition("@@")[2] for line in lines if " A " not in line}
    minor = ".".join(library.resolve().name.split(".so.")[1].split(".")[:2])
    assert versions == {f"UVMALLOC_{minor}"}


def test_the_list_names_each_once() -> None:
    assert sorted(LISTED) == sorted(set(LISTED))


def names_used_by_plugins() -> set[str]:
    plugins = find_libraries().plugins()
    if not plugins:
        pytest.skip("this build has no PyTorch plugin")
    return {
        name
        for plugin in plugins
        for name in names(plugin, "--undefined-only")
        if name.startswith(("uvm::", "uvmalloc_")) or " for uvm::" in name
    }


def test_the_plugins_use_what_is_listed() -> None:
    assert sorted(names_used_by_plugins() - set(LISTED)) == []


def test_programs_and_the_plugin_know_their_names() -> None:
    """Programs know the names that the public headers declare."""
    public = "".join(file.read_text() for file in (ROOT / "include").rglob("*.h*"))
    declared = set(re.findall(r"([\w~]+)\(", re.sub(r"//.*", "", public)))
    functions = {name for name in INTERFACE if name.startswith("uvm::")}
    assert [name for name in sorted(functions) if name.rsplit("::")[-1] not in declared] == []
    private = {name for name in LISTED if name.startswith("uvm::")} - functions
    assert sorted(private - names_used_by_plugins()) == []


def functions_of_ours(library: Path) -> set[str]:
    """Returns uvmalloc's functions that the library or archive defines, visible or not."""
    command = ["nm", "--defined-only", "--demangle", "--format=posix", library]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found = re.findall(r"^(.*) [Tt] [0-9a-f]+ ?[0-9a-f]*$", "\n".join(lines), re.MULTILINE)
    return {
        name
        for name in found
        if name.startswith(("uvm::", "uvmalloc_")) and "(anonymous namespace)" not in name
    }


def test_the_allocators_libraries_hold_nothing_of_pipelines() -> None:
    libraries = find_libraries()
    of_pipelines = functions_of_ours(libraries.pipelines)
    assert "uvmalloc_plan_make" in of_pipelines
    for name in ("libuvmalloc.so", "libuvmalloc.a", "libuvmalloc_preload.so"):
        core = functions_of_ours(libraries.folder / name)
        assert len(core) > 500
        assert sorted(core & of_pipelines) == []


def test_no_library_reads_variables_of_a_program_with_raised_rights() -> None:
    """secure_getenv() finds no variables in such a program, but getenv() finds the caller's."""
    found = [path for path in find_libraries().folder.rglob("libuv*.so") if path.is_file()]
    libraries = [path for path in found if "bench" not in path.name]
    readers = [
        path.name for path in libraries if "secure_getenv" in names(path, "--undefined-only")
    ]
    assert {"libuvmalloc.so", "libuvmalloc_preload.so", "libuvmsim.so"} <= set(readers)
    plain = [path.name for path in libraries if "getenv" in names(path, "--undefined-only")]
    assert plain == []


def test_libraries_find_each_other_by_their_own_place_alone() -> None:
    """The wheel takes the libraries as built. An empty element would mean the current folder."""
    libraries = [path for path in find_libraries().folder.rglob("*.so*") if not path.is_symlink()]
    assert len(libraries) > 3
    for library in libraries:
        command = ["readelf", "-d", library]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for path in re.findall(r"PATH\).*\[(.*)\]", said):
            assert all(element.startswith("$ORIGIN") for element in path.split(":")), library
