"""Runs tests whose outcome is a figure: expandable segments, and doors of tensors' addresses.

Expandable segments: the tests compare PyTorch's own allocator on the simulated device with
uvmalloc. Doors: each attribute by which the address of a tensor leaves PyTorch has a test; the
newest torch is counted too if this checkout has its environment.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from rich.console import Console

from bench.verdict import Target
from tests.pytorch.conftest import TORCH_MINOR

_ROOT = Path(__file__).resolve().parents[2]


def _passed(files: list[str], *options: str, python: str = sys.executable) -> tuple[int, int]:
    """Returns how many tests passed, and how many ran."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(_ROOT)]
        command += [f"--junitxml={results}", *options, *(f"tests/pytorch/{name}" for name in files)]
        subprocess.run(command, cwd=_ROOT, check=False)
        suite = ElementTree.parse(results).getroot().find("testsuite")
        assert suite is not None
        ran, failed, broken, skipped = (
            int(suite.get(key, "0")) for key in ("tests", "failures", "errors", "skipped")
        )
    return ran - skipped - failed - broken, ran - skipped


def measure(console: Console) -> dict[str, Any]:
    segments = _passed(
        ["test_expandable_segments.py", "test_without_plugin.py"], "-k", "expandable"
    )
    doors = {TORCH_MINOR: _passed(["test_doors.py"])}
    for venv in sorted((_ROOT / "build").glob("venv-2.*")):
        python = str(venv / "bin" / "python")
        doors[venv.name.removeprefix("venv-")] = _passed(["test_doors.py"], python=python)
    console.print(f"expandable segments: {segments}, doors: {doors} (passed, run)")
    return {
        "expandable_tests": segments[0] / segments[1],
        "address_doors": min(passed / ran for passed, ran in doors.values()),
        "address_doors_tests": {minor: ran for minor, (_, ran) in doors.items()},
    }


def targets(keys: dict[str, Any]) -> list[Target]:
    names = ("expandable_tests", "address_doors")
    return [Target(name, "", keys[name], 1, at_most=False) for name in names]
