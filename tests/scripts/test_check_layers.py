"""The check finds includes, imports and words that go against the arrows."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECK = ROOT / "scripts" / "check_layers.py"


def check(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, CHECK, "--root", root], capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Makes a tree of three rooms; each includes only the rooms below it."""
    for room in ("runtime", "storage", "hints"):
        shutil.copytree(ROOT / room, tmp_path / room)
    shutil.copytree(ROOT / "include", tmp_path / "include")
    assert check(tmp_path).stdout == "0 violations\n"
    return tmp_path


def test_this_tree_has_no_include_against_the_arrows() -> None:
    finished = check(ROOT)
    assert (finished.returncode, finished.stdout) == (0, "0 violations\n")


def test_an_include_against_the_arrows_is_a_violation(tree: Path) -> None:
    (tree / "storage" / "planted.hpp").write_text('#include "hints/hint.hpp"\n')
    (tree / "hints" / "hint.hpp").touch()
    finished = check(tree)
    assert finished.returncode == 1
    assert finished.stdout == (
        "storage/planted.hpp includes hints/hint.hpp: storage may not include hints\n1 violations\n"
    )


def test_a_folder_without_a_line_is_a_violation(tree: Path) -> None:
    (tree / "attic").mkdir()
    (tree / "attic" / "old.hpp").touch()
    (tree / "hints" / "planted.hpp").write_text('#include "attic/old.hpp"\n')
    finished = check(tree)
    assert finished.returncode == 1
    assert "hints/planted.hpp includes attic/old.hpp, whose room has no line in LAYERS" in (
        finished.stdout
    )


def test_a_public_header_includes_public_headers_of_its_layers_alone(tree: Path) -> None:
    public = tree / "include" / "uvmalloc"
    (public / "new.hpp").touch()
    (tree / "runtime" / "own.hpp").touch()
    lines = ["#include <uvmalloc/facade.hpp>", '#include "runtime/own.hpp"', ""]
    (public / "place.hpp").write_text("\n".join(lines))
    finished = check(tree)
    assert finished.returncode == 1
    assert finished.stdout == (
        "include/uvmalloc/new.hpp has no room in PUBLIC\n"
        "include/uvmalloc/place.hpp includes include/uvmalloc/facade.hpp: runtime may not include"
        " storage\n"
        "include/uvmalloc/place.hpp includes runtime/own.hpp, which is not installed\n"
        "3 violations\n"
    )


def test_the_interface_and_traces_do_not_import_the_command_line(tree: Path) -> None:
    package = tree / "pytorch" / "python" / "uvmalloc"
    shutil.copytree(ROOT / "pytorch" / "python" / "uvmalloc", package)
    assert check(tree).stdout == "0 violations\n"
    for name in ("memory.py", "_trace/plan.py"):
        with (package / name).open("a") as file:
            file.write("\ndef planted():\n    from uvmalloc._cli import main\n")
    finished = check(tree)
    assert finished.returncode == 1
    of = "pytorch/python/uvmalloc"
    assert finished.stdout == (
        f"{of}/_trace/plan.py imports _cli/main.py: _trace may not import it\n"
        f"{of}/memory.py imports _cli/main.py: interface may not import it\n"
        "2 violations\n"
    )


def test_the_allocator_names_no_framework_outside_texts(tree: Path) -> None:
    for path, line in (
        ("heap/planted.hpp", '// "free tensors" helps, says the text\nbool has_tensors;\n'),
        ("process/framework_bridge.hpp", "bool has_framework();\n"),
    ):
        file = tree / "allocator" / path
        file.parent.mkdir(parents=True)
        file.write_text(line)
    finished = check(tree)
    assert finished.returncode == 1
    assert finished.stdout == (
        "allocator/heap/planted.hpp:2 names a tensor: the room knows none\n1 violations\n"
    )
