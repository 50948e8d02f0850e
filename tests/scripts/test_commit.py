"""The commit that the build writes into the library: from git, from an archive, or unknown."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHOW = """
include("${PROJECT_SOURCE_DIR}/cmake/uvmalloc_commit.cmake")
message("commit ${UVMALLOC_COMMIT}")
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Returns a folder with the files that decide about the commit."""
    (tmp_path / "cmake").mkdir()
    for name in ("uvmalloc_commit.cmake", "commit.txt"):
        shutil.copy(ROOT / "cmake" / name, tmp_path / "cmake" / name)
    (tmp_path / "show.cmake").write_text(SHOW)
    return tmp_path


def commit_of(tree: Path) -> str:
    command = ["cmake", f"-DPROJECT_SOURCE_DIR={tree}", "-P", tree / "show.cmake"]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    return finished.stderr.strip().removeprefix("commit ")


def git(tree: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    command = ["git", *identity, "-C", tree, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_clone_has_its_commit_and_says_if_files_differ(tree: Path) -> None:
    git(tree, "init", "-q")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "first")
    git(tree, "tag", "v1")
    head = git(tree, "rev-parse", "HEAD")
    assert commit_of(tree) == head
    (tree / "show.cmake").write_text(SHOW + "\n")
    assert commit_of(tree) == f"{head}-dirty"


def test_an_archive_has_the_commit_in_a_file(tree: Path) -> None:
    shutil.copy(ROOT / ".gitattributes", tree / ".gitattributes")
    git(tree, "init", "-q")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "first")
    head = git(tree, "rev-parse", "HEAD")
    out = tree / "archive"
    out.mkdir()
    git(tree, "archive", "-o", str(tree / "archive.tar"), "HEAD")
    subprocess.run(["tar", "-xf", tree / "archive.tar", "-C", out], check=True)
    assert commit_of(out) == head, "not that of a repository around it"


def test_sources_without_either_are_unknown(tree: Path) -> None:
    assert commit_of(tree) == "unknown"
