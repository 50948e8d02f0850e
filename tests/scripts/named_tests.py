"""The names of all tests of the tree."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def named_tests() -> set[str]:
    """Returns the names of C++ tests without their suites, and of Python's test functions."""
    found = subprocess.run(
        ["git", "grep", "-hE", r"^TEST|^ *def test_", "--", "tests"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    names = re.findall(r"^TEST\w*\(\w+, (\w+)\)|^ *def (test_\w+)\(", found, re.M)
    return {name for pair in names for name in pair if name}
