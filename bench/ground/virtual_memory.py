"""Compares served virtual memory management with the simulated driver's.

Random programs (tests/preload/programs/virtual_memory_fuzz.cpp) must print the same. A pool that
grows as llama.cpp's does, to 1.5 times the device, must end with the right bytes; the device alone
refuses it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from uvmalloc._cli.environment import Machine

from bench.verdict import Target
from tests.preload.served_fuzz import CALLS, SEQUENCES, built
from tests.preload.test_virtual_memory import MIB, POOL, programs

PROGRAMS = 25


def measure(console: Console) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = built("virtual_memory", Path(folder))
        differences = [fuzzer.difference(1 + number * SEQUENCES) for number in range(PROGRAMS)]
        for difference in filter(None, differences):
            console.print(difference)
        run = programs(Machine(capacity_bytes=64 * MIB), Path(folder))
        served = run(POOL).stdout.split()
        alone = run(POOL, UVMALLOC_CUDA="0").stdout.split()
    console.print(
        f"{PROGRAMS * SEQUENCES * CALLS:,} calls of virtual memory management compared; a pool of "
        f"96 MiB on a device of 64 MiB: served {served[1]} MiB, alone {alone[1]} MiB"
    )
    return {
        "vmm_conformance": differences.count("") / PROGRAMS,
        "vmm_oversubscribed": served == ["0", "96", "True"] and alone[0] != "0",
    }


def targets(keys: dict[str, Any]) -> list[Target]:
    return [
        Target("vmm_conformance", "", keys["vmm_conformance"], 1, at_most=False),
        Target("vmm_oversubscribed", "", float(keys["vmm_oversubscribed"]), 1, at_most=False),
    ]
