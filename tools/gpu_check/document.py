"""Writes the page of results: one section for each stage."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from gpu_check.measurements import Json

HINT_TIMES = ("first_call_us", "first_done_us", "repeated_call_us", "repeated_done_us")


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "device"


def words(name: str) -> str:
    return name.replace("_", " ")


def one_line(text: str) -> str:
    return " ".join(text.split())[:200]


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return [*lines, ""]


def failure(section: Json) -> list[str] | None:
    return [f"Failed: {section['failed']}", ""] if isinstance(section.get("failed"), str) else None


def hint_lines(hints: Json) -> list[str]:
    rows = [
        (
            *(words(call), words(size), words(populated)),
            one["result"],
            *(one.get(name, "") for name in HINT_TIMES),
        )
        for call, by_size in hints.items()
        for size, by_population in by_size.items()
        for populated, one in by_population.items()
    ]
    header = ("call", "size", "populated", "result", "first, call", "first, done")
    return table((*header, "repeated, call", "repeated, done"), rows)


def capture_lines(capture: Json) -> list[str]:
    """Makes a row for each call, and a column for each mode and thread."""
    columns = [(mode, thread) for mode, by_thread in capture.items() for thread in by_thread]
    mode, thread = columns[0]
    rows = []
    for call in capture[mode][thread]:
        cells = []
        for mode, thread in columns:
            one = capture[mode][thread][call]
            ended = "" if one["capture"] == "CUDA_SUCCESS" else f", capture: {one['capture']}"
            cells.append((one["result"] + ended).replace("CUDA_ERROR_", "").replace("CUDA_", ""))
        rows.append((words(call), *cells))
    header = [f"{mode}, {thread}".replace("_", " ") for mode, thread in columns]
    return table(("call", *header), rows)


def nested_lines(section: Json) -> list[str]:
    """Makes one table of the plain figures, and one of all sections that have the same figures.

    Sections with different figures follow separately.
    """
    plain = [(words(name), value) for name, value in section.items() if not isinstance(value, dict)]
    lines = table(("what", "value"), plain) if plain else []
    nested = {name: one for name, one in section.items() if isinstance(one, dict) and one}
    if not nested:
        return lines
    columns = list(next(iter(nested.values())))
    flat = all(not isinstance(value, dict) for one in nested.values() for value in one.values())
    if flat and all(list(one) == columns for one in nested.values()):
        rows = [(words(name), *one.values()) for name, one in nested.items()]
        return lines + table(("", *map(words, columns)), rows)
    for name, one in nested.items():
        lines += [f"{words(name)}:", "", *nested_lines(one)]
    return lines


def conformance_lines(section: Json) -> list[str]:
    counts = {name: value for name, value in section.items() if name != "failures"}
    failures = [f"* {name}: {one_line(text)}" for name, text in section["failures"].items()]
    return nested_lines(counts) + ([*failures, ""] if failures else [])


def training_lines(trainings: Json) -> list[str]:
    rows = []
    for name, one in trainings.items():
        if "failed" in one:
            rows.append((words(name), f"failed: {one_line(one['failed'])}", "", "", ""))
            continue
        times = (one["native_step_ms"], one["uvmalloc_step_ms"], one["uvmalloc_over_native"])
        rows.append((words(name), words(one["losses"]), *times))
    return table(("model", "losses", "native step, ms", "uvmalloc step, ms", "ratio"), rows)


SECTIONS: dict[str, tuple[str, Callable[[Json], list[str]]]] = {
    "conformance": ("Conformance tests on this driver", conformance_lines),
    "training": ("Training with and without uvmalloc, all of it fitting", training_lines),
    "random_moves": ("Random programs of moves, against torch's own allocators", nested_lines),
    "served_training": (
        "Training with torch's own allocator, whose calls uvmalloc serves",
        nested_lines,
    ),
    "evictions": (
        "Training with a budget of device memory below the need, the card itself never short",
        nested_lines,
    ),
    "pairs": ("Allocation and free from the cache, through torch", nested_lines),
    "any_program": (
        "cudaMalloc and cudaFree in a program that uses only CUDA, nanoseconds",
        nested_lines,
    ),
    "alignment": ("Alignment of managed allocations", nested_lines),
    "allocations": ("cuMemAllocManaged and cuMemFree, microseconds", nested_lines),
    "hints": (
        "Hints, microseconds: until the call returned, until it had taken effect",
        hint_lines,
    ),
    "prefetch_to_host": ("Does a prefetch to the host block its caller?", nested_lines),
    "default_stream_event": ("Events of the default stream across threads", nested_lines),
    "capture": ("Calls while a stream is captured", capture_lines),
    "call_costs": ("Small calls, nanoseconds", nested_lines),
}


def document(results: Json) -> str:
    device = results["device"]
    lines = [f"# {device['name']}", ""]
    lines += ["Written by `scripts/gpu_check`; the same figures as JSON are beside this page.", ""]
    lines += nested_lines(device)
    for key, (title, show) in SECTIONS.items():
        section = results.get(key, {"failed": "not run"})
        lines += [f"## {title}", "", *(failure(section) or show(section))]
    return "\n".join(lines)
