"""docs/compatibility.md names the versions that are pinned."""

from __future__ import annotations

import re
from pathlib import Path

from uvmalloc._cli.accepted import DRIVER_VERSIONS

from bench.wheels.started import WHEELS

ROOT = Path(__file__).parents[2]


def pinned(file: str) -> dict[str, str]:
    text = (ROOT / "scripts" / file).read_text()
    return dict(re.findall(r"^([\w-]+)==([\w.]+)", text, re.MULTILINE))


def test_the_page_names_the_pinned_versions() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    section = page.split("## Versions\n")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|", section, re.MULTILINE))
    listed = (ROOT / "scripts" / "torch_versions.txt").read_text()
    torch = re.findall(r"^[\d.]+$", listed, re.MULTILINE)
    newest = pinned("requirements_cuda.txt")
    assert rows["PyTorch"] == f"{torch[0]}, {torch[-1]}"
    assert rows["CUDA driver"] == f"{DRIVER_VERSIONS[0]}, {DRIVER_VERSIONS[-1]}"
    assert rows["CUDA runtime"].split(", ")[1] == newest["nvidia-cuda-runtime"]
    oldest_cccl = pinned("requirements_cccl.txt")["nvidia-cuda-cccl"]
    assert rows["libcu++ (CCCL)"] == f"{oldest_cccl}, {newest['nvidia-cuda-cccl']}"
    assert rows["RMM"] == newest["librmm-cu13"]


def test_the_page_names_the_wheels_and_their_versions() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    section = page.split("## Wheels\n")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| ([^|(]+?)(?: \([^|]*)? \| ([\d.]+) \|", section, re.MULTILINE))
    versions = pinned("wheel_requirements.txt")
    assert {name.strip("`"): version for name, version in rows.items()} == {
        wheel.name: versions[wheel.package] for wheel in WHEELS
    }
