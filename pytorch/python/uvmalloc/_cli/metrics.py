"""The figures of running programs as OpenMetrics text, which Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from uvmalloc._cli.report import MEMORY_KINDS, Report

Labels = Mapping[str, str]


@dataclass(frozen=True)
class _Family:
    """Metrics of one name. A name with a unit ends in it; a counter's samples end in _total."""

    name: str
    kind: str  # gauge or counter
    help: str


_BY_KIND = {
    "live_bytes": _Family("uvmalloc_live_bytes", "gauge", "Memory that the program holds"),
    "cached_bytes": _Family("uvmalloc_cached_bytes", "gauge", "Free memory kept for reuse"),
    "peak_bytes": _Family("uvmalloc_peak_bytes", "gauge", "Most live memory so far"),
    "allocated_bytes": _Family("uvmalloc_allocated_bytes", "counter", "Memory allocated so far"),
    "allocations": _Family("uvmalloc_allocations", "counter", "Allocations so far"),
    "cache_hits": _Family("uvmalloc_cache_hits", "counter", "Allocations served from the cache"),
}
_MOVES = _Family("uvmalloc_moves", "counter", "Device moves without a copy")
_DIRECTIONS = ("host_to_device", "device_to_host", "device_to_device")
_ON_DEVICE = _Family("uvmalloc_device_bytes", "gauge", "Memory believed to be on the device")
# Figures of a process, each with its keys in the report.
_OF_PROCESS = (
    (_Family("uvmalloc_budget_bytes", "gauge", "Most memory in use at a time"), ("budget_bytes",)),
    (_Family("uvmalloc_moved_bytes", "counter", "Moved without a copy"), ("moves", "bytes")),
    (_Family("uvmalloc_copied_bytes", "counter", "Copied by moves"), ("copies_by_moves", "bytes")),
    (_Family("uvmalloc_prefetches", "counter", "Prefetches sent"), ("prefetches", "sent")),
    (_Family("uvmalloc_prefetched_bytes", "counter", "Prefetched"), ("prefetches", "bytes")),
    (_Family("uvmalloc_out_of_memory", "counter", "Requests that failed"), ("out_of_memory",)),
    (_Family("uvmalloc_groups", "gauge", "Groups of memory"), ("groups",)),
)


def metrics(reports: Iterable[Report]) -> str:
    """Returns the text. Labels name the process by its ID and, if it has one, its rank.

    Command lines are left out, because they may hold secrets. Figures that are not in a report, or
    are not numbers, are left out.
    """
    samples: dict[_Family, list[str]] = {}
    for report in reports:
        process = {"pid": str(report.get("pid", ""))}
        if report.get("rank") is not None:
            process["rank"] = str(report["rank"])
        for family, labels, value in _samples(report):
            if isinstance(value, bool) or not isinstance(value, int):
                continue
            suffix = "_total" if family.kind == "counter" else ""
            line = f"{family.name}{suffix}{_text_of({**process, **labels})} {value}"
            samples.setdefault(family, []).append(line)
    lines = []
    for family, found in samples.items():
        lines.append(f"# TYPE {family.name} {family.kind}")
        if family.name.endswith("_bytes"):
            lines.append(f"# UNIT {family.name} bytes")
        lines += [f"# HELP {family.name} {family.help}.", *found]
    return "".join(f"{line}\n" for line in [*lines, "# EOF"])


def _samples(report: Report) -> Iterator[tuple[_Family, Labels, Any]]:
    for key, family in _BY_KIND.items():
        for kind in MEMORY_KINDS:
            yield family, {"kind": kind}, _value(report, ("facades", kind, key))
    for direction in _DIRECTIONS:
        yield _MOVES, {"direction": direction}, _value(report, ("moves", direction))
    devices = report.get("devices")
    for number, device in enumerate(devices if isinstance(devices, list) else []):
        yield _ON_DEVICE, {"device": str(number)}, _value(device, ("believed_bytes",))
    for family, keys in _OF_PROCESS:
        value = _value(report, keys)
        yield family, {}, len(value) if isinstance(value, list) else value


def _value(found: Any, keys: Iterable[str]) -> Any:
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _text_of(labels: Labels) -> str:
    escapes = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    texts = (f'{name}="{each.translate(escapes)}"' for name, each in labels.items())
    return f"{{{','.join(texts)}}}"
