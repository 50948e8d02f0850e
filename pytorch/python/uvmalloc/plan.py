"""What a recorded step takes with less memory, under each policy: uvmalloc_plan's figures.

docs/oversubscription.md says what the policies are.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from uvmalloc.errors import CommandError
from uvmalloc.sizes import format_size
from uvmalloc.tables import print_table

_COLUMNS = ("memory", "policy", "time of a step", "against all resident", "to device", "to host")


def what_if(
    program: Path, trace: Path, machine: str, memory_bytes: Sequence[int], step: str | None
) -> dict[str, Any]:
    """The program's answer. CommandError where the trace or the machine is of no use."""
    if not program.is_file():
        raise CommandError(f"{program} is missing: scripts/build makes it")
    command = [str(program), str(trace), "--machine", machine]
    for size in memory_bytes:
        command += ["--memory", str(size)]
    if step is not None:
        command += ["--step", step]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise CommandError(finished.stderr.strip().removeprefix("uvmalloc_plan: "))
    result: dict[str, Any] = json.loads(finished.stdout)
    return result


def _rows(result: dict[str, Any]) -> Iterator[list[str]]:
    resident_ns = result["all_resident"]["step_ns"]
    for point in result["points"]:
        for policy, figures in point["policies"].items():
            row = [format_size(point["memory_bytes"]), policy]
            if "failure" in figures:
                yield [*row, figures["failure"], "", "", ""]
                continue
            yield [
                *row,
                f"{figures['step_ns'] / 1e6:.3f} ms",
                f"{figures['step_ns'] / resident_ns:.2f} x",
                format_size(figures["to_device_bytes"]),
                format_size(figures["to_host_bytes"]),
            ]


def show(result: dict[str, Any], console: Console) -> None:
    footprint, largest = result["footprint_bytes"], result["largest_kernel_bytes"]
    console.print(
        f"The step needs {format_size(footprint)}, one kernel at most {format_size(largest)}. "
        f"On {result['machine']}, with all of it resident, it takes "
        f"{result['all_resident']['step_ns'] / 1e6:.3f} ms."
    )
    print_table(console, _COLUMNS, _rows(result), numbers_from=2)
    for policy, size in result["smallest_memory_bytes"].items():
        console.print(f"{policy}: within 10 % of that from {format_size(size)} on.")
