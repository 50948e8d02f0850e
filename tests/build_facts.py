"""The configuration of the build under test."""

from __future__ import annotations

import re

from uvmalloc.libraries import find_libraries


def found_by_cmake(name: str) -> str:
    """Returns a folder from the build's cache, or an empty string if no folder was found."""
    cache = (find_libraries().folder.parent / "CMakeCache.txt").read_text()
    [*found] = re.findall(rf"^{name}:PATH=(.*)$", cache, re.MULTILINE)
    return found[0] if found else ""
