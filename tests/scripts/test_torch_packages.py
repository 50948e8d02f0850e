"""Which torch packages scripts/build makes plugins for, and what the scripts print as help."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Makes a checkout with the scripts, the default environment and that of torch 2.13."""
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / "scripts", root / "scripts")
    for name in ("venv", "venv-2.13"):
        (root / "build" / name).mkdir(parents=True)
        (root / "build" / name / "site-packages").write_text(f"/cache/{name}\n")
    return root


def torch_package(folder: Path, version: str, cuda: str | None) -> Path:
    """Makes a Python with this torch."""
    package = folder / "site" / "torch"
    (package / "include" / "ATen").mkdir(parents=True)
    (package / "include" / "ATen" / "ATen.h").touch()
    (package / "__init__.py").touch()
    (package / "version.py").write_text(
        f"__all__ = ['__version__', 'cuda']\n__version__ = '{version}'\n"
        f"cuda: Optional[str] = {cuda!r}\n"
    )
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder}/site exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def in_bash(checkout: Path, text: str) -> subprocess.CompletedProcess[str]:
    command = f"source {checkout}/scripts/common.sh; {text}"
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)


def folders(checkout: Path) -> list[str]:
    return in_bash(checkout, "torch_folders").stdout.strip().split(";")


OURS = ["/cache/venv/torch", "/cache/venv-2.13/torch"]


def test_a_torch_of_the_users_environment_gets_a_plugin(checkout: Path, tmp_path: Path) -> None:
    assert folders(checkout) == OURS
    python = torch_package(tmp_path / "user", "2.15.1+cu132", "13.2")
    noted = in_bash(checkout, f"note_torch {python}")
    assert noted.returncode == 0
    assert f"the plugin for torch 2.15 is built for the one in {tmp_path}/user/site" in noted.stderr
    assert folders(checkout) == [*OURS, f"{tmp_path}/user/site/torch"]
    shutil.rmtree(tmp_path / "user")
    assert folders(checkout) == OURS, "the environment is gone"


def test_one_torch_of_a_version_is_enough(checkout: Path, tmp_path: Path) -> None:
    python = torch_package(tmp_path / "user", "2.13.1", "13.0")
    noted = in_bash(checkout, f"note_torch {python}")
    assert (noted.returncode, noted.stderr) == (0, "")
    assert folders(checkout) == OURS


@pytest.mark.parametrize(
    ("version", "cuda", "why"),
    [
        ("2.10.0", "13.0", "uvmalloc serves torch 2.11 2.12 2.13 2.14 2.15"),
        ("2.16.0", "13.0", "uvmalloc serves torch 2.11 2.12 2.13 2.14 2.15"),
        ("2.15.0", "12.8", "it is built for CUDA 12.8, and uvmalloc needs a torch for CUDA 13"),
        ("2.15.0+cpu", None, "it is built for CUDA none"),
    ],
)
def test_a_torch_that_cannot_be_served_is_left_out(
    checkout: Path, tmp_path: Path, version: str, cuda: str | None, why: str
) -> None:
    noted = in_bash(checkout, f"note_torch {torch_package(tmp_path / 'user', version, cuda)}")
    assert noted.returncode == 1
    assert why in noted.stderr and noted.stderr.count("\n") == 1
    assert folders(checkout) == OURS


def test_a_python_without_torch_is_refused(checkout: Path, tmp_path: Path) -> None:
    empty = tmp_path / "python"
    empty.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    empty.chmod(0o755)
    noted = in_bash(checkout, f"note_torch {empty}")
    assert (noted.returncode, noted.stderr) == (1, f"uvmalloc: {empty} has no torch\n")


def test_plugins_that_no_build_makes_again_are_removed(checkout: Path) -> None:
    lib = checkout / "build" / "release" / "lib"
    lib.mkdir(parents=True)
    kept = {"libuvmalloc_torch_2_11.so", "libuvmsim_torch_2_13.so", "libuvmsim_torch.so"}
    for name in (*kept, "libuvmalloc_torch_2_12.so", "libuvmsim_torch_2_12.so"):
        (lib / name).touch()
    assert in_bash(checkout, "remove_other_plugins").returncode == 0
    assert {file.name for file in lib.iterdir()} == kept


def described(text: str) -> bool:
    """Returns whether a script sources the file that answers --help."""
    return "/common.sh" in text and "own_help" not in text


SCRIPTS = sorted(
    file.name
    for file in (ROOT / "scripts").iterdir()
    if file.is_file() and file.suffix == "" and described(file.read_text())
)


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("word", ["--help", "-h"])
def test_a_script_says_what_it_does(name: str, word: str) -> None:
    script = ROOT / "scripts" / name
    shown = subprocess.run([script, word], capture_output=True, text=True, timeout=60)
    head = script.read_text().split("\n", 1)[1].partition("\nsource ")[0]
    expected = [line.removeprefix("#").removeprefix(" ") for line in head.splitlines()]
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.splitlines() == expected
    assert len(expected) > 1


def test_there_are_scripts_with_help() -> None:
    assert {"build", "setup", "wheel", "test", "demo"} <= set(SCRIPTS)
