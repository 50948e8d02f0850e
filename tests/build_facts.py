"""What the build under test was configured with."""

from __future__ import annotations

import re

from uvmalloc.libraries import find_libraries


def found_by_cmake(name: str) -> str:
    """A folder of the build's cache; empty where it was not looked for or not found."""
    cache = (find_libraries().folder.parent / "CMakeCache.txt").read_text()
    [*found] = re.findall(rf"^{name}:PATH=(.*)$", cache, re.MULTILINE)
    return found[0] if found else ""
