"""The lists that scripts/lists.py writes match the library and the simulator."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from uvmalloc.libraries import find_libraries

ROOT = Path(__file__).resolve().parents[2]
FILES = ("docs/settings.md", "pytorch/python/uvmalloc/_cli/accepted.py")


def lists(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    library = find_libraries().require_uvmalloc()
    command = [sys.executable, ROOT / "scripts" / "lists.py", "--root", root, "--library", library]
    return subprocess.run([*command, *options], capture_output=True, text=True, timeout=60)


def test_the_page_and_the_package_have_the_lists_of_the_library() -> None:
    checked = lists(ROOT, "--check")
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("file", "now", "changed"),
    [
        (FILES[0], "| `UVMALLOC_MOVE` | `cow` |", "| `UVMALLOC_MOVE` | `copy` |"),
        (FILES[1], '"alias", "copy")', '"alias")'),
        (FILES[1], '("12.2", ', "("),
    ],
)
def test_a_list_that_differs_is_named_and_written_anew(
    tmp_path: Path, file: str, now: str, changed: str
) -> None:
    for name in (*FILES, "sim/cuda/driver_versions.def"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    text = (ROOT / file).read_text()
    assert text.count(now) == 1
    (tmp_path / file).write_text(text.replace(now, changed))
    checked = lists(tmp_path, "--check")
    assert (checked.returncode, checked.stdout) == (
        1,
        f"{file} is not what scripts/lists.py writes\n",
    )
    assert lists(tmp_path).returncode == 0
    assert (tmp_path / file).read_text() == text
