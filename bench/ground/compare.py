"""Writes ground.json: the figures of each measure below, in one object.

A measure is a module with `measure(console)`, which prints a table and returns keys, and
`targets(keys)`. To add a measure, add its module to MEASURES.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.ground import hints, names, residency, suites, virtual_memory
from bench.verdict import verdict_table

MEASURES = (names, virtual_memory, suites, residency, hints)


def compare(output: Path, console: Console) -> None:
    keys: dict[str, Any] = {}
    for part in MEASURES:
        keys |= part.measure(console)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(keys, indent=2) + "\n")
    console.print(verdict_table([target for part in MEASURES for target in part.targets(keys)]))
