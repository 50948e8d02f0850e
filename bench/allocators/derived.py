"""Computes values that follow from measured ones."""

from __future__ import annotations

from collections.abc import Callable

from bench.allocators.measure import Absent, Results
from bench.allocators.plan import LIVE_SIZES, TRACE_EVENTS, TRACED, UNTRACED, Level


def add_derived(results: Results, gaps: list[Absent], level: Level) -> None:
    """Adds the keys `live_scaling`, `trace_cost` and `trace_event_ns`. If an input of a value is
    missing, the value is None, and `gaps` gets the reason why the input is missing.
    """
    for allocator in list(results.get("live_pair_ns", {})):
        for size in (size for size in level.sizes if size in LIVE_SIZES):
            parts = [f"{size}, {live:,} live" for live in (level.many_live, level.few_live)]
            source = ("live_pair_ns", allocator)
            _add(results, gaps, ("live_scaling", size), source, parts, _ratio)
    for allocator in list(results.get("trace_ns", {})):
        source = ("trace_ns", allocator)
        for case, events in TRACE_EVENTS.items():
            parts = [f"{case}, {how}" for how in (TRACED, UNTRACED)]
            _add(results, gaps, ("trace_cost", case), source, parts, _ratio)
            per_event = _difference_per(events)
            _add(results, gaps, ("trace_event_ns", case), source, parts, per_event)


def _ratio(above: float, below: float) -> float:
    return above / below


def _difference_per(count: int) -> Callable[[float, float], float]:
    return lambda more, less: (more - less) / count


def _add(
    results: Results,
    gaps: list[Absent],
    target: tuple[str, str],
    source: tuple[str, str],
    parts: list[str],
    of_parts: Callable[[float, float], float],
) -> None:
    (key, case), (from_key, allocator) = target, source
    first, second = (results[from_key][allocator].get(part) for part in parts)
    value = of_parts(first, second) if first is not None and second is not None else None
    results.setdefault(key, {}).setdefault(allocator, {})[case] = value
    if value is None:
        reasons = [
            gap.reason
            for gap in gaps
            if (gap.key, gap.allocator) == (from_key, allocator) and gap.case in parts
        ]
        gaps.append(Absent(key, allocator, case, reasons[0] if reasons else "not measured"))
