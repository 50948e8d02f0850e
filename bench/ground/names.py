"""Counts exported names of CUDA and HIP that no table of libuvmalloc_preload.so classifies.

The names are those of the stand-ins, which a test compares with the newest packages.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console

from bench.verdict import Target
from tests.preload.test_variants import forms_left_out, intercepted, left, unlisted


def measure(console: Console) -> dict[str, Any]:
    ours = intercepted()
    unknown = sorted(unlisted(ours)[0] | (forms_left_out(ours) - set(left())))
    if unknown:
        console.print("not classified:", *unknown)
    return {"names_unknown": len(unknown)}


def targets(keys: dict[str, Any]) -> list[Target]:
    return [Target("names_unknown", "", keys["names_unknown"], 0, at_most=True)]
