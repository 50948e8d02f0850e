"""The stand-ins' lists of names have those of the newest CUDA release, and no others."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def newest_names() -> ModuleType:
    file = ROOT / "sim" / "cuda" / "newest_names.py"
    specification = importlib.util.spec_from_file_location("newest_names", file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def newest_cuda() -> Path:
    folder = Path((ROOT / "build" / "newest-cuda").read_text().strip()) / "nvidia" / "cu13"
    assert (folder / "include" / "cuda.h").is_file(), "scripts/setup installs it"
    return folder


def test_the_lists_have_all_names_and_no_others(
    newest_names: ModuleType, newest_cuda: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert newest_names.compare(newest_cuda, add=False) == 0, capsys.readouterr().out


def test_a_missing_name_and_an_invented_one_are_found_and_the_first_is_added(
    newest_names: ModuleType,
    newest_cuda: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = newest_names.DRIVER_NAMES.read_text().split()
    names.remove("cuMemGetLocationInfo")
    names.remove("cuMemFreeAsync_ptsz")
    listed, introduced = tmp_path / "names.txt", tmp_path / "introductions.inc"
    listed.write_text("\n".join([*names, "cuMemAllocEverything"]) + "\n")
    introduced.write_text('// Comment.\n{"cuMemAdvise_v2", 12020},\n')
    monkeypatch.setattr(newest_names, "DRIVER_NAMES", listed)
    monkeypatch.setattr(newest_names, "INTRODUCTIONS", introduced)
    assert newest_names.compare(newest_cuda, add=True) == 3
    assert capsys.readouterr().out.splitlines() == [
        "names.txt: new: cuMemFreeAsync_ptsz",
        "names.txt: new: cuMemGetLocationInfo",
        "names.txt: in no header or library: cuMemAllocEverything",
    ]
    assert introduced.read_text().splitlines() == [
        "// Comment.",
        '{"cuMemAdvise_v2", 12020},',
        '{"cuMemGetLocationInfo", 13040},',
    ]
    assert newest_names.compare(newest_cuda, add=False) == 1
