"""What a recorded step takes with less memory, under each policy: uvmalloc_plan's figures.

docs/oversubscription.md says what the policies are.
"""

from __future__ import annotations

import html
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from uvmalloc.accepted import POLICIES
from uvmalloc.errors import CommandError
from uvmalloc.sizes import format_size
from uvmalloc.tables import print_table

_COLUMNS = ("memory", "policy", "time of a step", "against all resident", "to device", "to host")
_HAND_COLUMNS = (
    "moved by hand", "memory", "against all resident", "`auto` with it", "`planned` with it",
)  # fmt: skip
# Told the recorded order, which a running program has to learn: no setting of a program.
_TOLD = "planned"
_MIB = 1 << 20
# By how much the step's need exceeds the memory, where no memory is named.
_TIMES = (3.0, 2.5, 2.0, 1.75, 1.5, 1.25, 1.15, 1.05, 1.0, 0.95)


def record(command: Sequence[str], machine: str, trace: Path) -> None:
    """Runs the program on the simulated device until it ends.

    CommandError where it fails or records nothing.
    """
    words = [sys.executable, "-m", "uvmalloc", "sim", "--no-report", "--machine", machine]
    code = subprocess.run([*words, "--trace", str(trace), "--", *command], check=False).returncode
    if code != 0:
        raise CommandError(f"{command[0]} ended with the code {code}: there is no whole step")
    if not trace.is_file():
        raise CommandError(
            f"{command[0]} recorded nothing: it made no allocation that uvmalloc serves "
            "(PyTorch's, and allocation calls of CUDA and HIP)"
        )


def what_if(
    program: Path, trace: Path, machine: str, memory_bytes: Sequence[int], step: str | None
) -> dict[str, Any]:
    """The program's answer, for up to ten sizes of memory where none is named. CommandError where
    the trace or the machine is of no use."""
    if not program.is_file():
        raise CommandError(f"{program} is missing: scripts/build makes it")
    command = [str(program), str(trace), "--machine", machine]
    for size in memory_bytes:
        command += ["--memory", str(size)]
    if not memory_bytes:
        for times in _TIMES:
            command += ["--times", str(times)]
    if step is not None:
        command += ["--step", step]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise CommandError(finished.stderr.strip().removeprefix("uvmalloc_plan: "))
    result: dict[str, Any] = json.loads(finished.stdout)
    # Parts of a small step's need are the same number of blocks.
    result["points"] = list({point["memory_bytes"]: point for point in result["points"]}.values())
    return result


def _name_of(policy: str) -> str:
    """The answer's `off` is a device without unified memory: not the program's policy `off`."""
    return "device memory alone" if policy == "off" else policy


def _rows(result: dict[str, Any]) -> Iterator[list[str]]:
    resident_ns = result["all_resident"]["step_ns"]
    for point in result["points"]:
        for policy, figures in point["policies"].items():
            row = [format_size(point["memory_bytes"]), _name_of(policy)]
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


def _hand_rows(result: dict[str, Any]) -> Iterator[list[str]]:
    resident_ns = result["all_resident"]["step_ns"]
    for name, entry in result["by_hand"].items():
        if "failure" in entry["figures"]:
            yield [name, "", entry["figures"]["failure"], "", ""]
            continue
        ways = (entry["figures"], entry["auto"], entry[_TOLD])
        yield [
            name,
            format_size(entry["memory_bytes"]),
            *(way.get("failure") or f"{way['step_ns'] / resident_ns:.2f} x" for way in ways),
        ]


def summary(result: dict[str, Any]) -> list[str]:
    """What the step needs, and the setting to use, in sentences."""
    footprint, largest = result["footprint_bytes"], result["largest_kernel_bytes"]
    lines = [
        f"The step needs {format_size(footprint)}, one kernel at most {format_size(largest)}. "
        f"On {result['machine']}, with all of it resident, it takes "
        f"{result['all_resident']['step_ns'] / 1e6:.3f} ms."
    ]
    smallest = result["smallest_memory_bytes"]
    for policy, size in smallest.items():
        lines.append(f"{_name_of(policy)}: within 10 % of that from {format_size(size)} on.")
    usable = [policy for policy in smallest if policy in POLICIES and policy not in ("off", _TOLD)]
    if usable:
        best = min(usable, key=lambda policy: smallest[policy])
        lines.append(
            f"UVMALLOC_POLICY={best} needs the least of the policies that a program can choose: "
            f"{format_size(smallest[best])}."
        )
    return lines


def show(result: dict[str, Any], console: Console) -> None:
    lines = summary(result)
    console.print(lines[0])
    print_table(console, _COLUMNS, _rows(result), numbers_from=2)
    print_table(console, _HAND_COLUMNS, _hand_rows(result), numbers_from=1)
    for line in lines[1:]:
        console.print(line)


def write(result: dict[str, Any], page: Path | None, picture: Path | None) -> None:
    """The tables and the chart as a page, and the chart as a picture."""
    from uvmalloc.trace_report import Chart, Curve, chart_parts, draw_png, table_html, write_page

    resident_ns = result["all_resident"]["step_ns"]
    points = sorted(result["points"], key=lambda point: point["memory_bytes"])
    curves = []
    for policy in points[0]["policies"]:
        runs = [p for p in points if "failure" not in p["policies"][policy]]
        curves.append(
            Curve(
                _name_of(policy),
                [p["memory_bytes"] / _MIB for p in runs],
                [p["policies"][policy]["step_ns"] / resident_ns for p in runs],
            )
        )
    chart = Chart(
        "steps", f"Time of a step on {result['machine']}, against all memory resident",
        "memory of the device, MiB", "times", curves,
        [(result["footprint_bytes"] / _MIB, "the step's need")],
    )  # fmt: skip
    if picture is not None:
        draw_png([chart], picture)
    if page is not None:
        parts = [f"<p>{html.escape(line)}</p>" for line in summary(result)]
        parts += chart_parts([chart])
        parts.append(table_html(_COLUMNS, list(_rows(result)), "policies"))
        parts.append(table_html(_HAND_COLUMNS, list(_hand_rows(result)), "by-hand"))
        write_page("A step with less memory", "A step with less memory", parts, page)
