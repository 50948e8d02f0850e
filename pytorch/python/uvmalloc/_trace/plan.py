"""Shows the time of a recorded step with less memory, under each policy.

uvmalloc_plan computes it. docs/reference/planning.md describes the policies.
"""

from __future__ import annotations

import html
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from uvmalloc._cli.accepted import POLICIES
from uvmalloc._cli.tables import print_table
from uvmalloc.errors import CommandError
from uvmalloc.sizes import format_size

_COLUMNS = ("memory", "policy", "time of a step", "against all resident", "to device", "to host")
_HAND_COLUMNS = ("moved by hand", "memory", "by hand", "auto", "planned")
# This policy knows the recorded order. A running program would first have to learn it.
_TOLD = "planned"
_STDERR = 2  # the descriptor of stderr
_MIB = 1 << 20
_DEFAULT = "auto"
# The policies that a program can set.
_SETTINGS = [policy for policy in POLICIES if policy not in ("off", _TOLD)]
_WITHIN = 1.1  # accepted slowdown against all memory resident, as in uvmalloc_plan
_GAIN = 1.05  # a setting must be faster than the default by this factor to be chosen
# The step's need divided by the memory, for the default list of memory sizes.
_TIMES = (3.0, 2.5, 2.0, 1.75, 1.5, 1.25, 1.15, 1.05, 1.0, 0.95)


def check(program: Path, machine: str, memory_bytes: Sequence[int]) -> None:
    """Raises CommandError if the machine or a size is unusable. Call it before recording."""
    _ask(program, ["--check", *_options(machine, memory_bytes)])


def record(command: Sequence[str], machine: str, trace: Path, keep_stdout: bool) -> None:
    """Runs the program on the simulated device until it ends.

    `keep_stdout`: sends its output to stderr, because stdout is for the answer. Raises CommandError
    if the program fails or records nothing.
    """
    words = [sys.executable, "-m", "uvmalloc", "sim", "--no-report", "--machine", machine]
    recording = [*words, "--trace", str(trace), "--", *command]
    output = _STDERR if keep_stdout else None
    code = subprocess.run(recording, stdout=output, check=False).returncode
    if code != 0:
        trace.unlink(missing_ok=True)
        raise CommandError(
            f"{command[0]} ended with exit code {code} before the trace had a complete step"
        )
    if not trace.is_file():
        raise CommandError(
            f"{command[0]} recorded nothing: it made no allocation that uvmalloc serves "
            "(PyTorch's, and allocation calls of CUDA and HIP)"
        )


def what_if(
    program: Path, trace: Path, machine: str, memory_bytes: Sequence[int], step: str | None
) -> dict[str, Any]:
    """Returns the result of uvmalloc_plan, by default for up to ten sizes of memory.

    Raises CommandError if the trace or the machine is unusable.
    """
    command = [str(trace), *_options(machine, memory_bytes)]
    if not memory_bytes:
        for times in _TIMES:
            command += ["--times", str(times)]
    if step is not None:
        command += ["--step", step]
    result: dict[str, Any] = json.loads(_ask(program, command))
    # For a small step, several ratios give the same memory size. Keep one point for each size.
    result["points"] = list({point["memory_bytes"]: point for point in result["points"]}.values())
    return {**result, "asked_memory_bytes": list(memory_bytes)}


def _options(machine: str, memory_bytes: Sequence[int]) -> list[str]:
    sizes = [word for size in memory_bytes for word in ("--memory", str(size))]
    return ["--machine", machine, *sizes]


def _ask(program: Path, arguments: Sequence[str]) -> str:
    finished = subprocess.run([str(program), *arguments], capture_output=True, check=False)
    if finished.returncode != 0:
        said = finished.stderr.decode("utf-8", "replace").strip()
        raise CommandError(said.removeprefix("uvmalloc_plan: "))
    return finished.stdout.decode("utf-8", "replace")


def _name_of(policy: str) -> str:
    """In the result, `off` is a device without unified memory, not a program's policy `off`."""
    return "device memory only" if policy == "off" else policy


def _ratio(result: dict[str, Any], figures: dict[str, Any]) -> float:
    """Returns a step's time divided by the time with all memory resident, or infinity if the step
    fails.
    """
    if "failure" in figures:
        return math.inf
    return float(figures["step_ns"] / result["all_resident"]["step_ns"])


def _rows(result: dict[str, Any]) -> Iterator[list[str]]:
    for point in result["points"]:
        for policy, figures in point["policies"].items():
            row = [format_size(point["memory_bytes"]), _name_of(policy)]
            if "failure" in figures:
                yield [*row, figures["failure"], "", "", ""]
                continue
            yield [
                *row,
                f"{figures['step_ns'] / 1e6:.3f} ms",
                f"{_ratio(result, figures):.2f} x",
                format_size(figures["to_device_bytes"]),
                format_size(figures["to_host_bytes"]),
            ]


def _hand_rows(result: dict[str, Any]) -> Iterator[list[str]]:
    for name, entry in result["by_hand"].items():
        if "failure" in entry["figures"]:
            yield [name, "", entry["figures"]["failure"], "", ""]
            continue
        ways = (entry["figures"], entry["auto"], entry[_TOLD])
        yield [
            name,
            format_size(entry["memory_bytes"]),
            *(way.get("failure") or f"{_ratio(result, way):.2f} x" for way in ways),
        ]


# ---- the answer, in sentences -------------------------------------------------------------------


def summary(result: dict[str, Any]) -> list[str]:
    """Returns sentences: what the step needs, and which setting to use for the given sizes."""
    footprint, largest = result["footprint_bytes"], result["largest_kernel_bytes"]
    lines = [
        f"The step needs {format_size(footprint)}, one kernel at most {format_size(largest)}. "
        f"On {result['machine']}, with all of it resident, it takes "
        f"{result['all_resident']['step_ns'] / 1e6:.3f} ms."
    ]
    if result.get("step_found_by") == "repetition":
        lines.append(
            f"The trace has no marks: the step is the {len(result['kernel_ns'])} kernels that the "
            "program repeats. uvmalloc.mark() where a step begins would choose it."
        )
    for policy, size in result["smallest_memory_bytes"].items():
        lines.append(f"{_name_of(policy)}: at most {_WITHIN:g} x from {format_size(size)} on.")
    points = sorted(result["points"], key=lambda point: -point["memory_bytes"])
    if result.get("asked_memory_bytes"):
        return [*lines, *(_answer(result, [point]) for point in points)]
    return [*lines, _answer(result, points)]


def _answer(result: dict[str, Any], points: Sequence[dict[str, Any]]) -> str:
    """Says which setting is fastest for these memories, how slow it is, and how much is enough."""
    setting = _fastest(result, points)
    ratios = {p["memory_bytes"]: _ratio(result, p["policies"][setting]) for p in points}
    runs = {size: ratio for size, ratio in ratios.items() if math.isfinite(ratio)}
    enough = f"From {format_size(_enough(result, setting))} on it takes at most {_WITHIN:g} x."
    if not runs:
        sizes = " or ".join(map(format_size, ratios))
        return f"With {sizes} the step does not run under any setting. {enough}"
    times = ", ".join(
        f"{ratio:.2f} x with {format_size(size)}" for size, ratio in _told_of(runs).items()
    )
    takes = f"Against all memory resident a step takes {times}."
    if max(ratios.values()) > _WITHIN:
        return f"{_set_to(setting)} is the fastest setting. {takes} {enough}"
    if setting == _DEFAULT:
        return f"The memory is enough, and nothing has to be set. {takes}"
    return f"The memory is enough with {_set_to(setting)}. {takes}"


def _set_to(policy: str) -> str:
    return f"UVMALLOC_POLICY={policy}{', the default,' if policy == _DEFAULT else ''}"


def _told_of(ratios: dict[int, float]) -> dict[int, float]:
    """Returns all ratios or, of more than three, those of the largest, middle and smallest size."""
    sizes = list(ratios)
    chosen = {sizes[0], sizes[len(sizes) // 2], sizes[-1]} if len(sizes) > 3 else set(sizes)
    return {size: ratio for size, ratio in ratios.items() if size in chosen}


def _fastest(result: dict[str, Any], points: Sequence[dict[str, Any]]) -> str:
    """Returns, of the settings under which most points run, the one that is fastest on average.

    Returns the default, unless another setting is faster by more than _GAIN.
    """

    def cost(policy: str) -> tuple[int, float]:
        ratios = [_ratio(result, point["policies"][policy]) for point in points]
        runs = [math.log(ratio) for ratio in ratios if math.isfinite(ratio)]
        slowness = sum(runs) / len(runs) if runs else 0.0
        return len(ratios) - len(runs), slowness - (policy == _DEFAULT) * math.log(_GAIN)

    settings: list[str] = [name for name in points[0]["policies"] if name in _SETTINGS]
    return min(settings, key=cost)


def _enough(result: dict[str, Any], policy: str) -> int:
    """Returns the least memory from which the policy is never slower than _WITHIN."""
    least: int = result["smallest_memory_bytes"][policy]
    tried = {p["memory_bytes"]: _ratio(result, p["policies"][policy]) for p in result["points"]}
    too_small = max((size for size, ratio in tried.items() if ratio > _WITHIN), default=0)
    if too_small < least:
        return least
    # A step may be slower with more memory. The search for the least memory ignores that case.
    larger = (size for size in tried if size > too_small)
    enough: int = min(larger, default=max(too_small, result["footprint_bytes"]))
    return enough


# ---- tables and pictures ------------------------------------------------------------------------


def show(result: dict[str, Any], console: Console) -> None:
    """Prints the summary, and tables with a line for each memory size."""
    first, *rest = summary(result)
    console.print(first, soft_wrap=True)
    policies = list(result["points"][0]["policies"])
    columns = ("memory", *map(_name_of, policies))

    def table(title: str, cell: Callable[[dict[str, Any]], str]) -> None:
        console.print(f"\n{title}", soft_wrap=True)
        rows = [
            [format_size(point["memory_bytes"]), *(cell(point["policies"][p]) for p in policies)]
            for point in result["points"]
        ]
        print_table(console, columns, rows, numbers_from=1)

    def time(figures: dict[str, Any]) -> str:
        return figures.get("failure") or f"{_ratio(result, figures):.2f} x"

    def moved(figures: dict[str, Any]) -> str:
        if "failure" in figures:
            return ""
        return format_size(figures["to_device_bytes"] + figures["to_host_bytes"])

    table("Time of a step, against all memory resident:", time)
    if _TOLD in policies:
        console.print(f"{_TOLD} knows the recorded order, which a program has to learn.")
    table("Bytes that a step moves, to the device and to the host:", moved)
    console.print("\nMemory moved by the program itself, and by each policy:", soft_wrap=True)
    print_table(console, _HAND_COLUMNS, _hand_rows(result), numbers_from=1)
    for line in rest:
        console.print(line, soft_wrap=True)


def write(result: dict[str, Any], page: Path | None, picture: Path | None) -> None:
    """Writes the tables and the chart as a page, and the chart as a picture."""
    from uvmalloc._trace import pages

    points = sorted(result["points"], key=lambda point: point["memory_bytes"])
    curves = []
    for policy in points[0]["policies"]:
        runs = [p for p in points if "failure" not in p["policies"][policy]]
        curves.append(
            pages.Curve(
                _name_of(policy),
                [p["memory_bytes"] / _MIB for p in runs],
                [_ratio(result, p["policies"][policy]) for p in runs],
            )
        )
    program = pages.title_of(result.get("program") or "")
    chart = pages.Chart(
        "steps",
        f"{program}: time of a step on {result['machine']}, against all memory resident",
        "memory of the device, MiB", "times", curves,
        [(result["footprint_bytes"] / _MIB, "the step's need")],
    )  # fmt: skip
    if picture is not None:
        pages.draw_png([chart], picture)
    if page is not None:
        parts = [f"<p>{html.escape(line)}</p>" for line in summary(result)]
        parts += pages.chart_parts([chart])
        parts.append(pages.table_html(_COLUMNS, list(_rows(result)), "policies"))
        parts.append(pages.table_html(_HAND_COLUMNS, list(_hand_rows(result)), "by-hand"))
        heading = f"{program}: a step with less memory"
        pages.write_page(heading, heading, parts, page)
